"""The ledger: what is reserved, settled and refused, and what it costs."""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import pytest

from vmem_core import (
    BudgetExceededError,
    InvalidRequestError,
    Totals,
    UnsupportedError,
    UsageLedger,
    genai_prices_source,
)

PRICES = {"chat-1": (2.0, 10.0), "embed-1": (0.5, 0.0)}


def reserved(ledger: UsageLedger, tokens_in: int, tokens_out: int = 0, model: str | None = "m", **more: Any) -> Any:
    given = {"accounted": True, **more}
    return ledger.reserve("memory-llm", model, input_tokens=tokens_in, output_tokens=tokens_out, **given)


def whole(ledger: UsageLedger) -> tuple[int, int, int, float, int]:
    totals = ledger.totals()
    return totals.calls, totals.input_tokens, totals.output_tokens, totals.cost, totals.unknown


# --------------------------------------------------------------------------------------------------- the arithmetic


def test_a_new_ledger_is_empty() -> None:
    assert UsageLedger().totals() == Totals(models={})
    assert UsageLedger().totals().tokens == 0


def test_a_reservation_counts_until_it_is_settled_with_what_was_reported() -> None:
    ledger = UsageLedger(prices={"m": (2.0, 10.0)})
    one = reserved(ledger, 100, 256)
    assert whole(ledger) == (1, 100, 256, pytest.approx((100 * 2 + 256 * 10) / 1e6), 1)
    ledger.settle(one, input_tokens=90, output_tokens=10)
    assert whole(ledger) == (1, 90, 10, pytest.approx((90 * 2 + 10 * 10) / 1e6), 0)
    assert ledger.totals().tokens == 100


def test_a_reservation_that_is_kept_stays_at_its_estimate_as_unknown() -> None:
    ledger = UsageLedger(prices={"m": (2.0, 10.0)})
    ledger.keep(reserved(ledger, 100, 256))
    assert whole(ledger) == (1, 100, 256, pytest.approx(0.00276), 1)
    assert whole(ledger) == (1, 100, 256, pytest.approx(0.00276), 1)


def test_totals_are_told_by_model() -> None:
    ledger = UsageLedger(prices=PRICES)
    ledger.settle(reserved(ledger, 5, 5, "chat-1"), input_tokens=1_000_000, output_tokens=100_000)
    ledger.settle(reserved(ledger, 5, 5, "chat-1"), input_tokens=0, output_tokens=0)
    ledger.settle(reserved(ledger, 5, 5, "embed-1"), input_tokens=2_000_000, output_tokens=0)
    ledger.keep(reserved(ledger, 7, 8, None))
    assert ledger.totals().models == {
        "chat-1": Totals(2, 1_000_000, 100_000, 3.0, 0),
        "embed-1": Totals(1, 2_000_000, 0, 1.0, 0),
        "unknown": Totals(1, 7, 8, 0.0, 1),
    }
    assert whole(ledger) == (4, 3_000_007, 100_008, 4.0, 1)


def test_a_call_is_counted_and_priced_under_the_model_that_ran() -> None:
    ledger = UsageLedger(prices=PRICES)
    one = reserved(ledger, 100, 256, "alias")
    assert ledger.totals().models == {"alias": Totals(1, 100, 256, 0.0, 1)}
    ledger.settle(one, input_tokens=1_000_000, output_tokens=0, model_id="chat-1")
    assert ledger.totals().models == {"chat-1": Totals(1, 1_000_000, 0, 2.0, 0)}


def test_totals_given_out_are_a_copy() -> None:
    ledger = UsageLedger()
    ledger.keep(reserved(ledger, 1))
    ledger.totals().models.clear()  # type: ignore[attr-defined]
    assert ledger.totals().models == {"m": Totals(1, 1, 0, 0.0, 1)}


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("most", "fits"), [(356, True), (355, False), (0, False), (None, True)])
def test_a_call_that_would_pass_the_limit_of_tokens_is_refused(most: int | None, fits: bool) -> None:
    ledger = UsageLedger(max_tokens=most)
    if fits:
        reserved(ledger, 100, 256)
    else:
        with pytest.raises(BudgetExceededError) as caught:
            reserved(ledger, 100, 256)
        assert caught.value.code == "budget_exceeded"
        assert ledger.totals().calls == 0


def test_what_runs_counts_towards_the_limit_and_what_was_settled_makes_room() -> None:
    ledger = UsageLedger(max_tokens=100)
    one = reserved(ledger, 60)
    with pytest.raises(BudgetExceededError):
        reserved(ledger, 41)
    ledger.settle(one, input_tokens=10, output_tokens=0)
    reserved(ledger, 90)
    with pytest.raises(BudgetExceededError):
        reserved(ledger, 1)
    reserved(ledger, 0)


def test_a_call_that_took_more_than_was_left_is_counted_and_the_next_refused() -> None:
    ledger = UsageLedger(max_tokens=100)
    ledger.settle(reserved(ledger, 50), input_tokens=5_000, output_tokens=0)
    assert ledger.totals().tokens == 5_000
    with pytest.raises(BudgetExceededError):
        reserved(ledger, 0, 0)


@pytest.mark.parametrize(("most", "fits"), [(0.00276, True), (0.00275, False), (0, False)])
def test_a_call_that_would_pass_the_limit_of_money_is_refused(most: float, fits: bool) -> None:
    ledger = UsageLedger(max_cost=most, prices={"m": (2, 10)})
    if fits:
        reserved(ledger, 100, 256)
    else:
        with pytest.raises(BudgetExceededError) as caught:
            reserved(ledger, 100, 256)
        assert caught.value.code == "budget_exceeded"
        assert whole(ledger) == (0, 0, 0, 0.0, 0)


@pytest.mark.parametrize("model", ["chat-2", "CHAT-1", "", None])
def test_only_allowed_models_may_run(model: str | None) -> None:
    ledger = UsageLedger(allowed_models=["chat-1"])
    reserved(ledger, 1, model="chat-1")
    with pytest.raises(BudgetExceededError) as caught:
        reserved(ledger, 1, model=model)
    assert caught.value.code == "model_not_allowed"
    assert ledger.totals().calls == 1


def test_without_allowed_models_all_may_run_and_with_none_of_them_no_one_may() -> None:
    reserved(UsageLedger(), 1, model=None)
    with pytest.raises(BudgetExceededError):
        reserved(UsageLedger(allowed_models=()), 1, model="chat-1")


@pytest.mark.parametrize(
    ("model", "is_accounted", "fits"),
    [
        ("chat-1", True, True),
        ("chat-1", False, False),
        ("chat-9", True, False),
        (None, True, False),
        (None, False, False),
    ],
)
def test_reject_refuses_what_has_no_price_or_reports_no_usage(model: Any, is_accounted: bool, fits: bool) -> None:
    ledger = UsageLedger(prices=PRICES, unknown_price="reject")
    if fits:
        reserved(ledger, 1, model=model, accounted=is_accounted)
    else:
        with pytest.raises(BudgetExceededError) as caught:
            reserved(ledger, 1, model=model, accounted=is_accounted)
        assert caught.value.code == "price_unknown"
    reserved(UsageLedger(prices=PRICES), 1, model=model, accounted=is_accounted)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"max_tokens": True}, "max_tokens"),
        ({"max_cost": -0.1}, "max_cost"), ({"max_cost": math.nan}, "max_cost"), ({"max_cost": "1"}, "max_cost"),
        ({"max_cost": True}, "max_cost"), ({"allowed_models": "chat-1"}, "allowed_models"),
        ({"unknown_price": "deny"}, "unknown_price"), ({"prices": 5}, "prices"), ({"prices": {"a": 1}}, "prices.a"),
        ({"prices": {"a": (1,)}}, "prices.a"), ({"prices": {"a": (1, -1)}}, "prices.a"),
        ({"prices": {"a": (1, math.nan)}}, "prices.a"), ({"prices": {"a": ("1", 2)}}, "prices.a"),
        ({"prices": {"a": (1, 2, 3)}}, "prices.a"),
    ],
    ids=range(16),
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        UsageLedger(**arguments)
    assert caught.value.path == path


# ------------------------------------------------------------------------------------------------------------ prices


def test_a_limit_that_cannot_be_says_where_the_bound_lies() -> None:
    with pytest.raises(InvalidRequestError, match=r"^max_tokens: must be 0 or more$"):
        UsageLedger(max_tokens=-1)


def test_prices_are_a_table_or_a_function_of_the_model() -> None:
    asked: list[str] = []

    def prices(model_id: str) -> tuple[float, float] | None:
        asked.append(model_id)
        return PRICES.get(model_id)

    for source in (PRICES, prices):
        ledger = UsageLedger(prices=source)
        for model in ("chat-1", "other"):
            ledger.settle(reserved(ledger, 1, model=model), input_tokens=500_000, output_tokens=100_000)
        assert ledger.totals().cost == pytest.approx(2.0)
    assert set(asked) == {"chat-1", "other"}


def test_a_table_of_prices_is_copied() -> None:
    prices = {"m": (1.0, 1.0)}
    ledger = UsageLedger(prices=prices)
    prices["m"] = (9.0, 9.0)
    reserved(ledger, 1_000_000)
    assert ledger.totals().cost == 1.0


def test_prices_of_the_genai_prices_package() -> None:
    pytest.importorskip("genai_prices")
    price_of = genai_prices_source()
    price = price_of("gpt-4o-mini")
    assert price is not None
    read, written = price
    assert 0 < read < written
    assert price_of("no-such-model-anywhere") is None
    ledger = UsageLedger(prices=price_of)
    ledger.settle(reserved(ledger, 1, model="gpt-4o-mini"), input_tokens=1_000_000, output_tokens=0)
    assert ledger.totals().cost == pytest.approx(read)
    with pytest.raises(BudgetExceededError):
        reserved(UsageLedger(prices=price_of, unknown_price="reject"), 1, model="no-such-model-anywhere")


def test_without_the_prices_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(UnsupportedError, match="prices"):
        genai_prices_source()


def test_a_ledger_is_safe_between_threads() -> None:
    ledger = UsageLedger(max_tokens=8_000, prices={"m": (1, 0)})
    barrier = threading.Barrier(8)
    refused: list[int] = []

    def work() -> None:
        barrier.wait()
        for number in range(200):
            try:
                one = reserved(ledger, 10)
            except BudgetExceededError:
                refused.append(number)
                continue
            if number % 2:
                ledger.settle(one, input_tokens=10, output_tokens=0)
            else:
                ledger.keep(one)
            ledger.totals()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = ledger.totals()
    assert (totals.calls, totals.tokens, len(refused)) == (800, 8_000, 800)
    assert totals.cost == pytest.approx(0.008)
