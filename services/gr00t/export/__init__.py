"""The network as seven ONNX modules with upstream's names and shapes, compared with torch; TensorRT where it is."""
