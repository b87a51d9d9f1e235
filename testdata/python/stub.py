"""A stand-in for pydantic: classes with the methods of its own that usher calls."""


class Limit:
    def __init__(self, **limits):
        vars(self).update(limits)


class Field:
    def __init__(self, metadata=(), **given):
        vars(self).update(given)
        self.metadata = [*metadata, *(Limit(**{k: v}) for k, v in given.items())]


class Model:
    def __init__(self, name):
        self.name = name

    @classmethod
    def model_json_schema(cls):
        return {
            "$defs": {"Inner": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            "type": "object",
            "properties": {"name": {"type": "string"}, "inner": {"$ref": "#/$defs/Inner"}},
            "required": ["name"],
        }

    @classmethod
    def model_validate(cls, value):
        if value["name"] == "wrong":
            raise ValueError("name: it is wrong")
        return cls(value["name"])

    def model_dump(self):
        return {"name": self.name}
