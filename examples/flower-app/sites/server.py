"""The server: the sum, β, and every site's model at that site."""

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedhip.flower import federate, personalize

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One round."""
    config = context.run_config
    federation, nodes = federate(grid, len(str(config["classes"]).split(",")), sites=int(config["sites"]))
    kept = personalize(grid, federation, nodes)
    logging.getLogger("flwr").info(
        "%d rows summed, beta %.3g, %d sites have their model", federation.grid.num_samples, federation.beta, len(kept)
    )
