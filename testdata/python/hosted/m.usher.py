import os
import neighbor

def large(): return "x" * (64 << 20)
def small(): return {}["x"]

def where():
    here = os.listdir(".") == os.listdir(os.path.dirname(__file__))
    return [os.path.basename(__file__), __name__, here, neighbor.X]

if __name__ == "__main__":
    raise SystemExit("is not run")
