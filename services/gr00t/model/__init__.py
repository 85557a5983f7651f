"""The network, under the published checkpoint's keys: images and prompt to features, features to actions."""
