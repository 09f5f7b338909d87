"""Writes the facts of cases.jsonl and answers.jsonl to the file named, leaving out what differs at every run."""
import json
import sys

OF_THE_MOMENT = ("uid", "creationTimestamp", "lastTransitionTime", "lastPhaseTransitionTime")


def strip(value):
    if isinstance(value, dict):
        return {k: strip(v) for k, v in value.items() if k not in OF_THE_MOMENT}
    if isinstance(value, list):
        return [strip(v) for v in value]
    return value


with open(sys.argv[1], "w") as out:
    for case, answer in zip(open("cases.jsonl"), open("answers.jsonl")):
        case, answer = json.loads(case), json.loads(answer)
        if answer.get("failure"):
            raise SystemExit(f"{case['name']}: {answer['failure']}")
        fact = {k: case[k] for k in ("name", "obj", "old", "sub") if k in case}
        if case.get("rows"):
            fact["cells"] = answer["cells"]
        else:
            fact["object"] = strip(answer["object"])
            if answer.get("warnings"):
                fact["warnings"] = answer["warnings"]
            # Behind the first line of an error may come a diff of the server's own types.
            fact["errors"] = [e.split("\n")[0] for e in answer["errors"]]
        out.write(json.dumps(fact, sort_keys=True, separators=(",", ":")) + "\n")
