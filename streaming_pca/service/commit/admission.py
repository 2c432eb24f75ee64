"""Checks that the ledger admits a stream with its settings."""

from __future__ import annotations

from typing import Any, Literal

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.arrow import find_pyarrow
from streaming_pca.data.codec import FORMATS, OCTETS
from streaming_pca.data.features.records import ARROW
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator, State
from streaming_pca.estimators.common.state import decode_fitting_state
from streaming_pca.estimators.registry import find
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.ledger.cap import BudgetExceeded, within_cap
from streaming_pca.privacy.ledger.entries import Cap, Opened
from streaming_pca.privacy.ledger.ledger import JobLedger, Ledger
from streaming_pca.privacy.ledger.protocol import JobStatus
from streaming_pca.privacy.noise import NOISE_LAW
from streaming_pca.privacy.parameters import Charge, format_number
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit.log_reader import LedgerLog
from streaming_pca.service.commit.state_topic import check_input, decode_checkpoint, find_state
from streaming_pca.service.commit.user_log import MalformedState
from streaming_pca.service.errors import CREATE, StreamRefused
from streaming_pca.text import install_command, shown

_REMOVED_OPTIONS: dict[str, Any] = {
    **dict.fromkeys(("noise_level", "largest_eigenvalue", "gap", "eigenvalues")),
    "schedule": "inverse",
    "accounting": "zcdp",
    "gap_noise": "gaussian",
}
"""Removed options in reservations of earlier versions, with their defaults: batches are still made so."""


def check_opened(stream: StreamSettings, ledger: Ledger) -> None:
    """Refuse (StreamRefused) a ledger without a cap, or with a cap other than ``stream.cap``."""
    opened = ledger.opened
    if opened is None:
        raise StreamRefused(f"ledger {stream.ledger_topic!r} is not open: set a cap with {CREATE}")
    cap = stream.cap
    if cap is not None and cap != opened.cap:
        raise StreamRefused(
            f"stream.cap is ({format_number(cap.epsilon)}, {format_number(cap.delta)}), "
            f"the ledger was opened with ({format_number(opened.cap.epsilon)}, "
            f"{format_number(opened.cap.delta)}): set stream.cap to that, or remove it"
        )


def check_admission(stream: StreamSettings, ledger: Ledger) -> None:
    """Refuse (StreamRefused) a stream that could not reserve a batch, regardless of its records."""
    check_opened(stream, ledger)
    if stream.content_type == ARROW and find_pyarrow() is None:
        # Otherwise this worker would spend the budget on null records.
        raise StreamRefused(f'stream.format = "arrow" needs pyarrow: {install_command("arrow")}')
    # With a registry, the codec is built later, when its schemas are known.
    if missing := stream.missing_library:
        raise StreamRefused(missing)
    name, job = stream.name, ledger.job(stream.name)
    if job.status is JobStatus.RETIRED:
        raise StreamRefused(f"stream {name!r} is retired, which is final: choose a new stream.name")
    if job.charges:
        raise StreamRefused(f"{name!r} has charges for releases made elsewhere: choose a new stream.name")
    _check_input(stream, ledger)
    if job.contract is None:
        _check_first_batch(stream, ledger)
        return
    _check_options(stream, job)
    if difference := contract_difference(stream, job.contract):
        raise StreamRefused(difference)


def contract_difference(stream: StreamSettings, recorded: dict[str, Any]) -> str | None:
    """Return how settings differ from the ledger's privacy contract, or None."""
    name = stream.name
    # A contract omits default values.
    default = {"content_type": OCTETS, **dict.fromkeys(("features", "message", "schema", "user_field"))}
    wanted = default | stream.privacy_contract
    recorded = default | recorded
    for key, value in wanted.items():
        if recorded.get(key) != value:
            setting, before = key, recorded.get(key)
            supported = find(stream.estimator).centerings
            if key == "centering" and isinstance(before, str) and before not in supported:
                # Settings cannot return to it.
                return (
                    f"an earlier version estimated the mean for stream {name!r} (stream.centering = "
                    f"{shown(before, 80)}), which {stream.estimator} does not support: "
                    "choose a new stream.name"
                )
            if key == "content_type":
                # A contract names the format by its media type.
                names: dict[Any, str] = {media_type: name for name, media_type in FORMATS.items()}
                setting, value, before = "format", names.get(value, value), names.get(str(before), before)
            # The contract identifies a file by its content.
            setting = "schema_file" if key == "schema" else setting
            difference = f"is {shown(value, 80)}, but the ledger has {shown(before, 80)}"
            difference = "is not what the ledger has" if isinstance(value, dict) else difference
            return (
                f"stream.{setting} {difference} for stream {name!r}: set it back, or choose a new stream.name"
            )
    return None


def _check_options(stream: StreamSettings, job: JobLedger) -> None:
    """Refuse changed options or another noise law if a user may be in several batches.

    The proof of their joint (epsilon, delta) guarantee requires the same calibration of all batches.
    """
    if stream.privacy_unit != "user" or job.reservation is None:
        return
    of_several = stream.contributions_per_user > 1 and stream.record_kind is not RecordKind.LOCAL
    if stream.private and of_several and job.reservation.parameters.get("noise") != NOISE_LAW:
        raise StreamRefused(
            f"stream {stream.name!r} was started by an earlier version, whose noise was discrete. The "
            "joint guarantee for a user's batches of both noise laws is not proved: "
            "choose a new stream.name"
        )
    wanted = stream.mechanism_options
    recorded = _without_removed(stream.name, job.reservation.parameters.get("options", wanted), wanted)
    # The length of a stream, and the range of a search, do not affect calibration.
    free: dict[str, Any] = {"n_records": None, "radius_range": None}
    if recorded | free != wanted | free:
        raise StreamRefused(
            f"stream.options is {shown(wanted, 80)}, but the ledger has charged users for "
            f"batches of {shown(recorded, 80)}: set it back, or choose a new stream.name"
        )


def _without_removed(name: str, recorded: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Drop removed options at their former defaults from recorded ones; refuse other values of them."""
    removed = {key: recorded[key] for key in _REMOVED_OPTIONS if key in recorded and key not in wanted}
    for key, value in removed.items():
        if value != _REMOVED_OPTIONS[key]:
            raise StreamRefused(
                f"the ledger has charged users of stream {name!r} for batches with option {key} = "
                f"{shown(value, 80)}. This option was removed: choose a new stream.name"
            )
    rest = {key: value for key, value in recorded.items() if key not in removed}
    # Estimators record the options of their warm start as written.
    if isinstance(warm := rest.get("warm_options"), dict):
        rest["warm_options"] = _without_removed(name, warm, wanted.get("warm_options") or {})
    return rest


def decode_admitted_state(stream: StreamSettings, estimator: Estimator[Any, Any], data: bytes) -> State:
    """Decode a stream's state; refuse (StreamRefused) one of other options.

    The privacy contract does not include options.
    """
    try:
        return decode_fitting_state(estimator, data)
    except (TypeError, ValueError, KeyError) as error:
        raise StreamRefused(
            f"the state of stream {stream.name!r} was written by another version or with other "
            "stream.options: continue with those, or give the stream a new name (its records stay charged)"
        ) from error


def check_room(stream: StreamSettings, cap: Cap, rule: Literal["basic", "zcdp"]) -> Charge:
    """Refuse a cap below the charge of one batch of a stream; return that charge.

    The ledger may not be open yet. Raises StreamRefused, whose message names the cap and the charge.
    """
    estimator = stream.build_estimator()
    try:
        charge = estimator.plan(estimator.init(utility_generator(stream.seed))).charge
    except ParameterError as error:
        raise StreamRefused(f"stream {stream.name!r} cannot be calibrated: {error}") from None
    if within_cap(charge, cap, rule):
        return charge
    limit, asked = (
        f"epsilon {format_number(each.epsilon)}, delta {format_number(each.delta)}" for each in (cap, charge)
    )
    of_ledger = f"the cap of ledger {stream.ledger_topic!r}, {limit}"
    if not stream.private:
        raise StreamRefused(
            f"stream {stream.name!r} is not private (private = false) and charges infinity, which "
            f"{of_ledger}, does not allow: give --cap inf,inf to a new ledger (`streaming-pca topics create`)"
        )
    if rule == "zcdp":
        asked += f", rho {'not claimed' if charge.rho is None else format_number(charge.rho)}"
    raise StreamRefused(
        f"{of_ledger} ({rule} composition), is below what one batch of stream {stream.name!r} is charged, "
        f"{asked}: lower stream.epsilon and stream.delta, "
        "or give a higher --cap to a new ledger (`streaming-pca topics create`)"
    )


def _check_input(stream: StreamSettings, ledger: Ledger) -> None:
    """Refuse records on a topic of reports, and reports on a topic of records.

    Reports are not charged: on a mixed topic, records would be released as if they already contained noise.
    """
    of_reports = stream.record_kind is RecordKind.LOCAL
    for name, job in ledger.jobs.items():
        # The caller compares this stream's own record_kind, with the rest of its contract.
        contract = None if name == stream.name else job.contract
        if contract is None or (contract.get("record_kind") == RecordKind.LOCAL) == of_reports:
            continue
        there, here = ("records", "reports") if of_reports else ("reports", "records")
        raise StreamRefused(
            f"topic {stream.input!r} holds {there}, as stream {name!r} reads it, and stream {stream.name!r} "
            f"(stream.record_kind = {str(stream.record_kind)!r}) would read {here}: give it its own "
            "input topic"
        )


def _check_first_batch(stream: StreamSettings, ledger: Ledger) -> None:
    """Refuse a stream whose first batch exceeds the cap, regardless of its records.

    Otherwise the stream would collect a whole batch before the refusal.
    """
    opened = ledger.opened
    assert isinstance(opened, Opened), "checked before"
    charge = check_room(stream, opened.cap, opened.filter)
    try:
        if stream.privacy_contract.get("privacy_unit") == "user":
            ledger.check_everywhere(stream.name, charge)
        else:
            ledger.check_unread(charge)
    except BudgetExceeded as error:
        raise StreamRefused(
            f"the cap of ledger {stream.ledger_topic!r} leaves no room for stream {stream.name!r}: {error}. "
            "Lower stream.epsilon and stream.delta, or read another input topic"
        ) from None


_SLICE = 5000  # offsets read per step: about one second, which may delay a take-over
_POLL_SECONDS = 10.0  # polling interval of the ledger until it contains something to compare


class StandbyCheck:
    """Repeated comparison of a stream's settings with its ledger and state, until they agree.

    It reads only committed entries, and does not wait for open transactions. A stream's first reservation
    binds all later ones to its contract, and states keep their shapes: agreement once is permanent.
    """

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings) -> None:
        self._kafka, self._stream, self._topic_id = kafka, stream, ""
        self._log: LedgerLog | None = None

    def run(self, topic_id: str) -> float | None:
        """Continue reading and compare; return the seconds until the next call, or None when done.

        Starts over if the input's ``topic_id`` has changed. 0 means that more entries can be read. A stream
        that has not begun does not have a contract yet, and one in its first batch does not have a state.
        Raises StreamRefused if a take-over by this standby would be refused. Raises SessionLost,
        BrokerUnreachable or KafkaError if the broker fails; the next call starts over.
        """
        if topic_id != self._topic_id:
            self.close()
            self._topic_id = topic_id
        wait: float | None = None
        try:
            wait = self._compare()
        finally:
            if wait is None:  # done, or failed
                self.close()
        return wait

    def _compare(self) -> float | None:
        if self._log is None:
            self._log = LedgerLog(self._kafka, self._stream.ledger_topic, self._topic_id)
        if not self._log.read_committed(_SLICE):
            return 0.0
        job = self._log.ledger.job(self._stream.name)
        if job.contract is None:
            # The stream may have begun on another input, whose ledger has the contract.
            check_input(self._kafka, self._stream, self._topic_id)
            return _POLL_SECONDS
        check_admission(self._stream, self._log.ledger)
        topic, digest = self._stream.state_topic, job.state_digest
        found = find_state(self._kafka, topic, digest) if digest else None
        if found is None or found.data is None:
            return _POLL_SECONDS  # the leader has just committed its first or next state
        try:
            checkpoint, _ = decode_checkpoint(found.data)
        except MalformedState as error:
            raise StreamRefused(f"state topic {topic!r} cannot be read: {error}") from None
        decode_admitted_state(self._stream, self._stream.build_estimator(), checkpoint.state)
        return None

    def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()
