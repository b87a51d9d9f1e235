print("printed at the top level")


def f():
    print("printed")
    yield {"log": "a word"}
    g()


def g():
    raise KeyError("x")
