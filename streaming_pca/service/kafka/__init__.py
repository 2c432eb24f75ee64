"""What the service makes sure of itself, beside what kafka-python does."""
