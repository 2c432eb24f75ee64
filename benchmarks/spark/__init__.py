"""Cost of batches on Apache Spark compared with one worker, and a cost model."""
