"""Spark's daemon of Python workers, which imports once what each worker needs: workers are its forks."""

import runpy

import streamsvm_spark  # noqa: F401

if __name__ == "__main__":
    runpy.run_module("pyspark.daemon", run_name="__main__")
