"""Routes of ledgers."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from streaming_pca.dashboard.api.conditional import answer
from streaming_pca.dashboard.api.context import Context
from streaming_pca.dashboard.api.parameters import Before, Input, Job, Limit, Offset, Partition
from streaming_pca.dashboard.models import EntryPage, LedgerPage, LedgerSummary, RecordCharge, Verification
from streaming_pca.dashboard.observing.errors import UnknownLedger
from streaming_pca.service.errors import TopicError


def add_ledgers(app: FastAPI, context: Context) -> None:
    """Add the routes of ledgers."""
    observer = context.observer

    @app.get("/v1/ledger", response_model=LedgerPage, tags=["ledgers"], operation_id="listLedgers")
    async def list_ledgers(request: Request) -> Response:
        """List the ledgers of all streams, ordered by input topic."""
        items = await context.memory.call(observer.ledgers)
        connection = (await context.memory.call(observer.overview)).connection
        return answer(request, LedgerPage(items=items, connection=connection))

    @app.get("/v1/ledger/{input}", response_model=LedgerSummary, tags=["ledgers"], operation_id="getLedger")
    async def get_ledger(request: Request, input: Input) -> Response:
        """Get the ledger of an input topic."""
        return answer(request, await context.memory.call(lambda: observer.ledger(input)))

    @app.get(
        "/v1/ledger/{input}/entries",
        response_model=EntryPage,
        tags=["ledgers"],
        operation_id="listEntries",
    )
    async def list_entries(
        request: Request, input: Input, limit: Limit = 50, before: Before = None, job: Job = None
    ) -> Response:
        """List the entries in memory, newest first."""
        page = await context.memory.call(lambda: observer.entries(input, limit, before, job))
        return answer(request, page, ("before", page.next))

    @app.get(
        "/v1/ledger/{input}/verification",
        response_model=Verification,
        tags=["ledgers"],
        operation_id="getVerification",
    )
    async def get_verification(request: Request, input: Input) -> Response:
        """Get the last verification of a ledger."""
        return answer(request, await context.memory.call(lambda: observer.verification(input)))

    @app.post(
        "/v1/ledger/{input}/verification",
        response_model=Verification,
        status_code=202,
        tags=["ledgers"],
        operation_id="startVerification",
        response_description="The verification is running, or another ledger's is.",
    )
    async def start_verification(request: Request, input: Input) -> Response:
        """Start a verification, unless one is already running."""
        found = await context.memory.call(lambda: observer.verify(input))
        body = found.model_dump_json()
        return Response(body, 202, {"cache-control": "no-store"}, "application/json")

    @app.get(
        "/v1/ledger/{input}/records/{partition}/{offset}",
        response_model=RecordCharge,
        tags=["ledgers"],
        operation_id="getRecordCharge",
    )
    async def get_record_charge(
        request: Request, input: Input, partition: Partition, offset: Offset
    ) -> Response:
        """Get the charges of one record."""

        def charge() -> RecordCharge:
            try:
                return observer.record_charge(input, partition, offset)
            except TopicError as error:
                found, connection = observer.ledger(input), observer.overview().connection
                if found.cap is None and connection.ok and connection.loaded:
                    # Retrying would not help.
                    raise UnknownLedger(str(error)) from None
                raise

        return answer(request, await context.broker.call(charge))
