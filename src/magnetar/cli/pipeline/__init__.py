"""Commands on pipelines: run views on Spark, look at them, query and rescale them."""
