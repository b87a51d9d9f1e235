"""An MCP server on stdin and stdout that counts working days, which models often get wrong.

The .mcp.json beside it starts it, as it would start any other MCP server.
"""

import json
import sys
from datetime import date, timedelta


def between(first, last):
    day, end = date.fromisoformat(first), date.fromisoformat(last)
    return sum((day + timedelta(n)).weekday() < 5 for n in range((end - day).days + 1))


def after(day, count):
    found = date.fromisoformat(day)
    while count > 0:
        found += timedelta(1)
        count -= found.weekday() < 5
    return found.isoformat()


DAY = {"type": "string", "format": "date"}
TOOLS = {
    "between": (between, "Counts the working days from one day to another, both days included.", {"first": DAY, "last": DAY}),
    "after": (after, "Finds the date that is a number of working days after a day.", {"day": DAY, "count": {"type": "integer", "minimum": 0}}),
}


def answer(method, params):
    if method == "initialize":
        about = "Counts working days, Monday to Friday."
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "dates", "version": "1"}, "instructions": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "description": text, "annotations": {"readOnlyHint": True},
                           "inputSchema": {"type": "object", "properties": properties, "required": list(properties)}}
                          for name, (_, text, properties) in TOOLS.items()]}
    if method == "tools/call":
        try:
            text = str(TOOLS[params["name"]][0](**params["arguments"]))
            return {"content": [{"type": "text", "text": text}]}
        except (TypeError, ValueError) as e:
            return {"content": [{"type": "text", "text": str(e)}], "isError": True}
    raise LookupError(f"no method {method}")


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue  # a notification
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params", {}))
    except LookupError as e:
        reply["error"] = {"code": -32601, "message": str(e)}
    print(json.dumps(reply), flush=True)
