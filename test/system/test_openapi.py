"""The description that the API serves is valid OpenAPI, and is the file in the repository."""

import pathlib

import yaml
from openapi_spec_validator import validate

FILE = pathlib.Path(__file__).resolve().parents[2] / "api" / "openapi.yaml"


def test_the_file_is_valid():
    validate(yaml.safe_load(FILE.read_text()))


def test_the_served_description_is_the_file(platform):
    assert platform.api("GET", "/openapi.json", key="") == yaml.safe_load(FILE.read_text())
