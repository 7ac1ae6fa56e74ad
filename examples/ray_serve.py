"""Prelude behind Ray Serve: engines in replicas, and an HTTP front that asks them.

    python examples/ray_serve.py --replicas 2 --port 8000
    curl localhost:8000/ -d '{"state": "Wo ist mein Paket?", "question": "Which language?", "labels": ["en", "de"]}'

The router sends texts that begin alike to one replica. A full queue is 503, a deadline that passed is 504, a wrong
request 400.
"""

import argparse
import time
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from ray import serve
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from prelude import Choice, Decide
from prelude.errors import DeadlineExceeded, InvalidRequest
from prelude.ray import deployment

web = FastAPI()  # it reads the annotations of `ask`: as objects, since Ray pickles the class


class Asked(BaseModel):
    state: str
    question: str
    labels: list[Any]  # the engine checks them and names the first that is wrong; pydantic would name each
    deadline: float = 10.0


@serve.deployment
@serve.ingress(web)
class Front:
    def __init__(self, engines: DeploymentHandle) -> None:
        self.engines = engines

    @web.post("/")
    async def ask(self, asked: Asked) -> dict[str, Any]:
        task = Decide(asked.state, [Choice(asked.question, asked.labels)])
        try:
            answers = await self.engines.run.remote(task, deadline=asked.deadline)
        except BackPressureError as error:
            raise HTTPException(503, str(error)) from error
        except DeadlineExceeded as error:
            raise HTTPException(504, str(error)) from error
        except InvalidRequest as error:
            raise HTTPException(400, str(error)) from error
        stats = answers.stats
        return {"label": answers[0].label, "cached_tokens": stats.cached_tokens, "prompt_tokens": stats.prompt_tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--port", type=int, default=8000)
    chosen = parser.parse_args()
    serve.start(http_options={"port": chosen.port})
    engines = deployment(chosen.model, replicas=chosen.replicas, threads=chosen.threads)
    serve.run(Front.bind(engines), name="prelude")
    print(f"listening on port {chosen.port}", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        serve.shutdown()


if __name__ == "__main__":
    main()
