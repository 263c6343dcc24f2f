"""Pipeline SQL: statements as typed values, their plans and the catalog. Pure: no Spark, no files, no network."""
