"""Export the network as seven ONNX modules with upstream's names and shapes, and build TensorRT engines of them."""
