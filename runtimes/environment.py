"""Makes the virtual environment of a Python file that lists its dependencies.

    python3 -B -I environment.py NAME.usher.py FOLDER

The list is in the file's block `# /// script` (PEP 723). The environment is in FOLDER,
one for each block and interpreter. It is made elsewhere and renamed, which breaks the
scripts in its bin: only its Python is used. This program prints the path of that
Python, or why there is none. Python reads nothing of the module's folder (-I). It
needs Python 3.9 or newer.
"""

import glob
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile

# an exception is about the file, and its text says enough
sys.tracebacklimit = 0
try:
    # python -m venv fails without both
    import ensurepip
    import venv
except ImportError as e:
    sys.exit(f"{e}: install Python's venv and pip (Debian: python3-venv)")

PYTHON = "Scripts/python.exe" if os.name == "nt" else "bin/python"


def run(python, *arguments):
    if subprocess.call([python, "-I", "-m", *arguments]):
        sys.exit(1)


def make(environment, block):
    """Makes an environment. Its pip contains what Python itself may lack."""
    run(sys.executable, "venv", environment)
    sys.path[:0] = glob.glob(environment + "/[Ll]ib/**/site-packages", recursive=True)
    from pip._vendor.packaging.specifiers import SpecifierSet

    try:
        import tomllib
    except ImportError:  # before Python 3.11
        from pip._vendor import tomli as tomllib
    metadata = tomllib.loads(re.sub("(?m)^# ?", "", block))
    wanted = metadata.get("requires-python", "")
    dependencies = metadata.get("dependencies", [])
    types = [type(dependencies), type(wanted), *map(type, dependencies)]
    if types[0] is not list or {*types[1:]} != {str}:
        sys.exit('"dependencies" is not a list of texts, or "requires-python" is no text')
    version = sys.version.split()[0].rstrip("+")
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        sys.exit(f"requires-python is {wanted}, but this is Python {version}")
    if dependencies:
        pip = ["pip", "install", "-qq", "--disable-pip-version-check", "--retries", "2"]
        run(f"{environment}/{PYTHON}", *pip, "--", *dependencies)


os.umask(0o077)
# exiting removes the temporary folder
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
path, folder = sys.argv[1:]
with open(path, encoding="utf-8") as file:
    blocks = re.findall(r"(?m)^# /// script\n((?:#(?: .*)?\n)+)# ///$", file.read())
if len(blocks) > 1:
    sys.exit("it has several blocks # /// script")
key = hashlib.sha256(f"{sys.executable} {sys.version} {blocks}".encode()).hexdigest()
environment = f"{folder}/{key}"
if not os.path.exists(environment):
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temp:
        make(temp + "/new", blocks[0])
        if not os.path.exists(environment):
            os.rename(temp + "/new", environment)
os.utime(environment)
print(f"{environment}/{PYTHON}")
