print("printed at the top level")


def f():
    print("printed")
    g()


def g():
    raise KeyError("x")
