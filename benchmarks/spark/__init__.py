"""Cost of batches on Apache Spark beside one worker, and a model of it."""
