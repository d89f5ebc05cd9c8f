"""The engine's server app: one round of the federation whose folder the run's configuration names."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid.http_grid import HttpGrid

from fedhip.federation.agreement.agreement import FILE, Agreement
from fedhip.federation.errors import RoundError
from fedhip.federation.operations.paths import ServerPaths
from fedhip.federation.server.round import Round
from fedhip.federation.transport.bounds import Bounds, bound_pulls
from fedhip.federation.transport.exchange import Exchange
from fedhip.federation.transport.hold import ArrivedQuestions
from fedhip.federation.transport.link import HEADER, password
from fedhip.federation.transport.parcels import Parcels

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the round; it succeeds, or raises, and then the engine's run fails."""
    folder = str(context.run_config.get("federation-folder") or "")
    if not folder:
        raise RoundError(
            'the run names no federation; start it with: fedhip federation run, or -c federation-folder="…"'
        )
    agreement = Agreement.read(Path(folder) / FILE)
    parcels = Parcels()
    parcels.carry(RuntimeHttpClient)
    parcels.carry_questions(HttpGrid)
    parcels.confirm_what_is_not_whole(RuntimeHttpClient)
    bound_pulls(Bounds.of(agreement), agreement.deadline, lambda: parcels.came)
    paths = ServerPaths(Path(folder))
    arrived = ArrivedQuestions(paths.control_port, paths.authority, lambda: {HEADER: password(paths.state.secret)})
    Round.open(paths.path, lambda deadline: Exchange(grid, deadline, arrived=arrived)).run()
