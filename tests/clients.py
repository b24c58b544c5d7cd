"""boto3, as fast as it can be: each of its clients reads a megabyte of JSON, here only the first.

Tests make clients for each test, and in each process.
"""

from __future__ import annotations

from functools import cache

import boto3
import botocore.session

botocore.session.create_loader = cache(botocore.session.create_loader)

# Processes that are forked from one that has imported this have read it, too.
boto3.session.Session(region_name="us-east-1").client(
    "s3", aws_access_key_id="none", aws_secret_access_key="none"
)
