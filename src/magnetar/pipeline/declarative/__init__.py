"""Projects of Spark Declarative Pipelines, as `spark-pipelines init` makes them; views are kept incrementally where that is exact."""
