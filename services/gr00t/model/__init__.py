"""The network, under the published checkpoint's keys: pictures and prompt to features, features to actions."""
