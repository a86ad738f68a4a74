"""Django's models as users of a registered table with cold rows; the stories of ``test_orms`` in Django's words."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, NotSupportedError, OperationalError, connections, models, transaction
from django.db.models import Count, F, Max, Q, Sum
from tests.django_models import Order, PlainOrder, use
from tests.shop import LINE, Shop, day, shop

from modak.embedded.postgres import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.inline]


@pytest.fixture(scope="module", params=["name", "server_binding", "port"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def world(door: str, cluster: Cluster, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with shop(cluster, template, tmp_path_factory.mktemp(door)) as made:
        yield made


@pytest.fixture
def db(world: Shop, door: str) -> Iterator[str]:
    """The alias of a database: Postgres with parameters bound by Django or by the server, or the gateway's port."""
    alias = use(door, world.door(door), **({"server_side_binding": True} if door == "server_binding" else {}))
    yield alias
    connections[alias].close()
    del connections[alias]


Story = Callable[[str, type[Any]], Any]


def an_insert_knows_its_key_and_defaults(db: str, model: type[Any]) -> Any:
    found = []
    for number in (3, 50):  # cold, hot
        one = model(placed_at=day(number), customer="new", amount=Decimal("9.99"), details={"a": [1, None]})
        one.save(using=db)
        # What the database makes of a default, Django knows when it asks.
        one.refresh_from_db(using=db)
        found.append(one.seen())
        other = model.objects.using(db).create(placed_at=day(number), customer="created", amount=1, status="given")
        other.refresh_from_db(using=db)
        found.append(other.seen())
    return found


def many_rows_at_once(db: str, model: type[Any]) -> Any:
    made = [model(placed_at=day(n * 7 % 60), customer=f"bulk {n}", amount=n, status="x", changed=0) for n in range(80)]
    model.objects.using(db).bulk_create(made)
    model.objects.using(db).bulk_create(
        [model(placed_at=day(n * 11 % 60), customer=f"batch {n}", amount=n) for n in range(25)], batch_size=10
    )
    found = model.objects.using(db).in_bulk([one.id for one in made])
    assert [found[one.id].customer for one in made] == [f"bulk {n}" for n in range(80)]
    return [one.id for one in made]


def rows_by_key(db: str, model: type[Any]) -> Any:
    objects = model.objects.using(db)
    with pytest.raises(model.DoesNotExist):
        objects.get(pk=100_000)
    return [objects.get(pk=key).seen() for key in (1, 20, 55, 60)] + [objects.filter(pk=2).first().seen()]


def objects_change(db: str, model: type[Any]) -> Any:
    objects = model.objects.using(db)
    cold, hot = objects.get(pk=5), objects.get(pk=52)
    for one in (cold, hot):
        one.status, one.details = "paid", {**one.details, "paid": True}
        one.amount *= 2
        one.save()
        one.changed = F("changed") + 1
        one.save(update_fields=["changed"])
        one.refresh_from_db()
    # Across the line, both ways, and from one cold month to another.
    other = objects.get(pk=6)
    cold.placed_at, hot.placed_at, other.placed_at = day(58), day(2), day(30)
    for one in (cold, hot, other):
        one.save(force_update=True)
    touched = [objects.get(pk=7), objects.get(pk=50)]
    for one in touched:
        one.status = f"bulk {one.id}"
    changed = objects.bulk_update(touched, ["status"])
    made = [objects.update_or_create(pk=key, defaults={"customer": "upserted", "placed_at": day(9), "amount": 3})[1] for key in (8, 90_000)]
    got = [objects.get_or_create(pk=key, defaults={"customer": "got", "placed_at": day(9), "amount": 3})[1] for key in (9, 90_001)]
    return changed, made, got, [objects.get(pk=key).seen() for key in (5, 52, 6, 7, 50, 8, 90_000, 9, 90_001)]


def changes_by_query(db: str, model: type[Any]) -> Any:
    objects = model.objects.using(db)
    return (
        objects.filter(customer="customer 1").update(changed=F("changed") + 1),
        objects.filter(pk__in=[11, 12, 51]).update(status="sent", amount=F("amount") * 2),
        objects.filter(placed_at__gte=day(10), placed_at__lt=day(55), details__n__gt=30).update(changed=7),
        objects.filter(Q(pk=13) | Q(pk=53)).update(placed_at=F("placed_at") + dt.timedelta(days=5)),
        objects.filter(pk__in=objects.filter(customer="customer 2").values("pk")).update(status="chosen"),
    )


def rows_go(db: str, model: type[Any]) -> Any:
    objects = model.objects.using(db)
    gone = [objects.get(pk=key).delete()[0] for key in (15, 54)]
    gone.append(objects.filter(pk__in=[16, 17, 55]).delete()[0])
    gone.append(objects.filter(customer="customer 3", amount__lt=20).delete()[0])
    gone.append(objects.filter(pk=15)._raw_delete(db))
    return gone, list(objects.filter(pk__in=[15, 16, 54, 18]).values_list("pk", flat=True))


def pages_and_counts(db: str, model: type[Any]) -> Any:
    objects = model.objects.using(db)
    ordered = objects.order_by("placed_at", "pk")
    pages = [[one.pk for one in ordered[start : start + 7]] for start in range(0, 70, 7)]
    keyset, last = [], None
    while page := list((ordered.filter(Q(placed_at__gt=last[0]) | Q(placed_at=last[0], pk__gt=last[1])) if last else ordered)[:13]):
        keyset += [one.pk for one in page]
        last = (page[-1].placed_at, page[-1].pk)
    assert [one.pk for one in ordered.iterator(chunk_size=10)] == keyset
    return (
        pages,
        keyset,
        list(ordered.reverse().values_list("pk", "status")[:5]),
        objects.count(),
        objects.filter(placed_at__lt=LINE).count(),
        objects.filter(pk=2).exists(),
        ordered.last().seen(),
        list(objects.values("customer").annotate(n=Count("*"), total=Sum("amount")).order_by("customer")),
        objects.aggregate(Max("placed_at"), Sum("amount")),
        list(objects.filter(details__n=8).values_list("pk", flat=True)),
        list(objects.filter(customer__icontains="OMER 2").order_by("pk").values_list("pk", flat=True)),
        list(objects.filter(placed_at__date=day(20).date()).values_list("pk", flat=True)),
        list(objects.dates("placed_at", "month")),
    )


def transactions_and_savepoints(db: str, model: type[Any]) -> Any:
    objects, found = model.objects.using(db), list[Any]()

    class Undo(Exception):
        pass

    with suppress(Undo), transaction.atomic(using=db):
        objects.filter(pk__in=[21, 57]).update(status="never")
        objects.create(placed_at=day(4), customer="never", amount=1)
        found.append(objects.filter(Q(customer="never") | Q(status="never")).count())
        raise Undo
    found.append(objects.filter(Q(customer="never") | Q(status="never")).count())
    with transaction.atomic(using=db):
        for key in (22, 56):
            objects.filter(pk=key).update(changed=1)
            with suppress(Undo), transaction.atomic(using=db):
                objects.filter(pk=key).update(changed=2)
                objects.get(pk=key + 1).delete()
                found.append(objects.get(pk=key).changed)
                raise Undo
            found += [objects.get(pk=key).changed, objects.filter(pk=key + 1).exists()]
        for number in (5, 50):  # what a constraint refuses, it refuses in either tier
            with pytest.raises(IntegrityError), transaction.atomic(using=db):
                objects.create(placed_at=day(number), customer=None, amount=1)
    return found


STORIES: list[Story] = [
    an_insert_knows_its_key_and_defaults,
    rows_by_key,
    objects_change,
    changes_by_query,
    rows_go,
    transactions_and_savepoints,
    many_rows_at_once,
    pages_and_counts,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_django(world: Shop, db: str, story: Story) -> None:
    told = [story(db, model) for model in (Order, PlainOrder)]
    assert told[0] == told[1]
    assert told[0]
    assert world.rows("orders") == world.rows("orders_plain")


def test_what_a_view_cannot_do_with_django(world: Shop, db: str, door: str) -> None:
    """The guide says so: row locks and ON CONFLICT are the heap's, and on the port they go there."""
    objects, other = Order.objects.using(db), use("other", world.door(door))
    again = Order(id=57, placed_at=day(56), customer="again", amount=1)
    try:
        with transaction.atomic(using=db):
            locked = objects.select_for_update().get(pk=57)
            with connections[other].cursor() as cursor:
                cursor.execute("set lock_timeout = '100ms'")
            change = Order.objects.using(other).filter(pk=57)
            if door == "port":
                with pytest.raises(OperationalError, match="lock timeout"):
                    change.update(changed=9)
            else:
                assert change.update(changed=locked.changed) == 1  # nothing is locked, and nobody is told
        if door == "port":
            objects.bulk_create([again], ignore_conflicts=True)
            assert objects.get(pk=57).customer != "again"
        else:
            with pytest.raises(NotSupportedError, match="ON CONFLICT"):
                objects.bulk_create([again], ignore_conflicts=True)
    finally:
        connections[other].close()
        del connections[other]
    assert world.rows("orders") == world.rows("orders_plain")


def test_the_models_are_plain_ones() -> None:
    """No field, manager or backend of ours: what works here works in anybody's project."""
    assert type(Order.objects) is models.Manager
    assert all(type(field).__module__.startswith("django.db.models") for field in Order._meta.get_fields())
