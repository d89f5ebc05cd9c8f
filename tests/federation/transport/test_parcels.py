"""Objects in the calls that speak of a message: all of them arrive, and none that nobody asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_objects
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid

from fedhip.federation.transport import parcels
from fedhip.federation.transport.bounds import Bounds, TooLargeError, bound_pulls
from fedhip.federation.transport.messages import PackedMessage
from fedhip.federation.transport.parcels import Parcels, fitting, objects_in, put, take_objects, wants_objects

#: The engine's libraries warn one another.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_what_is_laid_in_comes_out_and_all_else_stays() -> None:
    call = PushMessagesRequest(node=Node(node_id=11), clientapp_runtime_list=[0.5])
    plain = call.SerializeToString()
    contents = [b"one", b"two" * 100_000, b"x" * 127, b"y" * 128]
    put(call, [b"of an earlier try"])
    put(call, contents)
    arrived = PushMessagesRequest.FromString(call.SerializeToString(deterministic=True))
    assert objects_in(arrived) == {get_object_id(content): content for content in contents}
    assert not wants_objects(arrived)
    assert (arrived.node, list(arrived.clientapp_runtime_list)) == (call.node, [0.5])
    put(call, [])
    assert call.SerializeToString() == plain
    put(call, [b""])
    assert wants_objects(call)
    assert objects_in(call) == {}


def test_what_is_too_much_is_left_to_calls_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "_MOST", 10)
    assert fitting([b"1234", b"1234567", b"123456", b""]) == [b"1234", b"123456", b""]


def test_a_million_empty_ones_are_not_looked_at() -> None:
    call = PullMessagesRequest()
    put(call, [b""] * 1_000_000)
    assert not wants_objects(call)
    assert objects_in(call) == {}


# The engine's server.


class State:
    """What the engine's server has stored."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.traffic, self.deleted = objects, [0, 0], list[str]()

    def store_object(self, run: int, session: str, name: str, content: bytes) -> bool:
        assert (run, session) == (7, "session")
        self.objects[name] = content
        return content != b"refused"

    def get_object(self, run: int, name: str) -> bytes | None:
        assert run == 7
        return self.objects.get(name)

    @property
    def object_store(self) -> Any:
        return SimpleNamespace(delete=self.deleted.append)

    def store_traffic(self, run: int, *, bytes_sent: int, bytes_recv: int) -> None:
        assert bytes_sent or bytes_recv, "the engine's own refuses that"
        self.traffic[0] += bytes_sent
        self.traffic[1] += bytes_recv


def named(*contents: bytes) -> dict[str, bytes]:
    return {get_object_id(content): content for content in contents}


def of_a_message(*contents: bytes) -> tuple[Any, ObjectTree]:
    about = message_to_proto(question())
    about.metadata.run_id = 7
    root, *others = [ObjectTree(object_id=name) for name in named(*contents)]
    root.children.extend(others)
    return about, root


def test_the_server_stores_what_it_wants_and_nothing_else() -> None:
    one, two, refused, absent = named(b"one", b"two", b"refused", b"absent")
    answer = PushMessagesResponse(objects_to_push=[one, two, refused, absent], session_id="session")
    whole: list[Any] = []
    push, state = parcels._taking(lambda request, state: answer, lambda *call: whole.append(call)), State({})
    about, tree = of_a_message(b"one", b"two")
    call = PushMessagesRequest(messages_list=[about], message_object_trees=[tree])
    put(call, [b"one", b"two", b"refused", b"of another message"])
    assert list(push(call, state).objects_to_push) == [refused, absent]
    assert state.objects == named(b"one", b"two", b"refused")
    assert whole == []
    del answer.objects_to_push[:]
    push(call, state)
    assert whole == [(call, state)]
    put(call, [])
    push(call, state)  # a SuperNode of the engine's confirms by itself
    assert len(whole) == 1


def test_an_answer_that_is_whole_confirms_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers

    one, confirmed = get_object_id(b"one"), list[Any]()
    answer = PushMessagesResponse(objects_to_push=[one], session_id="session")
    monkeypatch.setattr(fleet_handlers, "push_messages", lambda request, state: answer)
    monkeypatch.setattr(runtime_handlers, "push_messages", runtime_handlers.push_messages)
    take_objects()
    monkeypatch.setattr(fleet_handlers, "confirm_message_received", lambda **call: confirmed.append(call["request"]))
    about, tree = of_a_message(b"one")
    about.metadata.reply_to_message_id = "the question"
    call = PushMessagesRequest(node=Node(node_id=11), messages_list=[about], message_object_trees=[tree])
    put(call, [b"another"])
    fleet_handlers.push_messages(call, State({}))  # type: ignore[arg-type]
    assert confirmed == []
    put(call, [b"one"])
    fleet_handlers.push_messages(call, State({}))  # type: ignore[arg-type]
    (told,) = confirmed
    assert (told.node.node_id, told.run_id, told.message_object_id) == (11, 7, "the question")


@pytest.mark.parametrize("to_sites", [True, False])
def test_the_server_gives_what_it_has_to_those_who_ask(to_sites: bool) -> None:
    contents = (b"root", b"child one", b"child two")
    about, tree = of_a_message(*contents)
    kept = PullMessagesResponse(messages_list=[about], message_object_trees=[tree])
    before = kept.SerializeToString()
    state = State(named(*contents))
    pull = parcels._giving(lambda request, state: kept, to_sites=to_sites)
    assert pull(PullMessagesRequest(), state) is kept  # a SuperNode of the engine's
    assert state.deleted == []
    call = PullMessagesRequest()
    put(call, [b""])
    for _ in range(2):
        given = PullMessagesResponse.FromString(pull(call, state).SerializeToString())
        assert objects_in(given) == named(*contents)
        assert given.messages_list == kept.messages_list
    assert kept.SerializeToString() == before  # it may be held for the next call, and is not to hold the objects
    assert state.traffic == [2 * sum(map(len, contents)) * to_sites, 0]
    assert state.deleted == [] if to_sites else [about.metadata.message_id] * 2


@pytest.mark.parametrize("missing", [b"", None])
def test_a_message_whose_objects_have_not_come_is_given_without(missing: bytes | None) -> None:
    about, tree = of_a_message(b"root", b"child")
    kept = PullMessagesResponse(messages_list=[about], message_object_trees=[tree])
    state: Any = State(dict.fromkeys(named(b"root", b"child"), missing))  # type: ignore[arg-type]
    call = PullMessagesRequest()
    put(call, [b""])
    for to_sites in (True, False):
        assert parcels._giving(lambda request, state: kept, to_sites=to_sites)(call, state) is kept
    state.objects |= named(b"root")
    given = parcels._giving(lambda request, state: kept, to_sites=False)(call, state)
    assert objects_in(given) == named(b"root")
    assert (state.traffic, state.deleted) == ([0, 0], [])


# The engine's clients.


def question(text: str = "hello") -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
    vector = ArrayRecord({"x": Array("uint8", (5,), "raw", b"12345")})
    return Message(RecordDict({"c": ConfigRecord({"text": text}), "a": vector}), 11, "query.hello")


class Link:
    """The engine's server, as far as a grid calls it: an answer is the question that came."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.objects: dict[str, bytes] = {}
        self.asked: dict[str, tuple[Any, Any]] = {}
        self.knows = True  # of objects in calls

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:  # noqa: N802
        self.calls.append("push")
        if self.knows:
            self.objects |= objects_in(request)
        numbers = [about.metadata.message_id for about in request.messages_list]
        self.asked |= dict(
            zip(numbers, zip(request.messages_list, request.message_object_trees, strict=True), strict=True)
        )
        names = {each.object_id for tree in request.message_object_trees for each in iterate_object_tree(tree)}
        return PushAppMessagesResponse(message_ids=numbers, objects_to_push=names - self.objects.keys())

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        self.calls.append("pull")
        found = [self.asked[number] for number in request.message_ids]
        answer = PullAppMessagesResponse(
            messages_list=[about for about, _ in found], message_object_trees=[tree for _, tree in found]
        )
        if self.knows and wants_objects(request):
            put(answer, [self.objects[each.object_id] for _, tree in found for each in iterate_object_tree(tree)])
        return answer

    def PushObject(self, request: Any) -> PushObjectResponse:  # noqa: N802
        self.calls.append("object")
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        self.calls.append("object")
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:  # noqa: N802
        self.calls.append("confirm")
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine's grid as the server app has it, and the server behind it."""
    monkeypatch.setattr(http_grid, "pull_objects", pull_objects)
    carried = Parcels()
    client = type("Client", (Link,), {})
    of_ours = type("Grid", (http_grid.HttpGrid,), {})
    carried.carry(client)
    carried.carry_questions(of_ours)
    carried.confirm_what_is_not_whole(client)
    bound_pulls(Bounds(16, 4), 10.0, lambda: carried.came)
    made: Any = of_ours(token="t")  # noqa: S106
    made._client, made._run = client(), SimpleNamespace(run_id=7)
    return made


@pytest.mark.parametrize("knows", [True, False])
def test_questions_and_answers_take_a_call_each_where_the_server_knows_how(grid: Any, knows: bool) -> None:
    grid._client.knows = knows
    asked = [question("one"), question("two")]
    numbers = grid.push_messages(asked)
    answers = [next(iter(grid.pull_messages([number]))) for number in numbers]
    assert [answer.content["c"]["text"] for answer in answers] == ["one", "two"]
    assert [answer.content["a"]["x"].data for answer in answers] == [b"12345"] * 2
    calls = grid._client.calls
    each = ["pull"] if knows else ["pull", "confirm"]
    assert [call for call in calls if call != "object"] == ["push", *each * 2]
    of_one = len(PackedMessage.of(question("one")).objects)
    assert calls.count("object") == (0 if knows else 2 * of_one + 2 * of_one - 3)  # both have one array


def test_objects_that_came_count_as_those_that_are_fetched(grid: Any) -> None:
    (number,) = grid.push_messages([question("x" * 200_000)])
    with pytest.raises(TooLargeError):
        grid.pull_messages([number])


def test_large_pieces_go_by_calls_of_their_own(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "_MOST", 2000)
    (number,) = grid.push_messages([question("x" * 4000)])
    assert grid._client.calls == ["push", "object"]
    (answer,) = grid.pull_messages([number])
    assert answer.content["c"]["text"] == "x" * 4000


def test_an_answer_that_came_in_part_is_confirmed(grid: Any) -> None:
    (number,) = grid.push_messages([question()])
    lacking = parcels._names([grid._client.asked[number][1]])[0]

    def partly(request: Any) -> Any:
        answer = Link.PullMessages(grid._client, request)
        put(answer, [content for name, content in objects_in(answer).items() if name != lacking])
        return answer

    client = type("Client", (Link,), {"PullMessages": lambda _, request: partly(request)})
    carried = Parcels()
    carried.carry(client)
    carried.confirm_what_is_not_whole(client)
    calls = client()
    calls.PullMessages(PullAppMessagesRequest(message_ids=[number]))
    assert not carried.is_whole
    calls.ConfirmMessageReceived(SimpleNamespace(message_object_id=number))
    assert calls.calls == ["confirm"]
