"""What is random about an image? Crops, policies, colour and mixtures."""
