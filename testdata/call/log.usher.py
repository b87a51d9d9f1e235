def f():
    yield {"log": "a word"}
