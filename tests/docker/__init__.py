"""The images and the compose file, on a real engine; and a real Prometheus."""
