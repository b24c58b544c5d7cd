"""What the page asks for, as plain values: one method for each of its questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np

from shardwright.comparing import similar
from shardwright.errors import UsageError
from shardwright.looking import overview, samples
from shardwright.looking.duplicates import Alike, Search
from shardwright.looking.latents import Agreement
from shardwright.looking.pictures import Previews
from shardwright.looking.sources import Source
from shardwright.looking.table import Numbers, Query, Table
from shardwright.progress import quantity
from shardwright.store.facts import NEAR_DUPLICATE, OUTLIER, Attention

_PAGE, _MOST = 60, 240  # samples
_GROUPS, _SIDE_BY_SIDE = 10, 12
_POINTS = 100_000  # of a map
_GRID = 65535  # steps of a map's sides
_LISTED = 20  # ids
_LARGEST = 10**9  # number of a page

Parameters = Mapping[str, str]
Answer = dict[str, Any]
Number = TypeVar("Number", int, float)


class Viewer:
    """A source, perhaps another one to compare it with, and their pictures."""

    def __init__(self, pictures: Previews, other: Previews | None = None) -> None:
        self.pictures, self.others = pictures, other
        self.source: Source = pictures.source
        self.table = self.source.table
        self.search = Search(self.source)
        # Of each sample its number in the other source, -1 if it is not there.
        self._there = np.full(len(self.table), -1)
        if other is not None:
            self._compare(other.source.table)

    def overview(self, given: Parameters) -> Answer:
        """Give the overview."""
        described = overview.describe(self.source)
        found = [
            {
                "flag": each.flag,
                "state": each.state,
                "count": each.count,
                "text": each.text,
                "query": _query(each),
            }
            for each in self.attention()
        ]
        if described["vectors"] and self.search.alike is None:
            text = "near-duplicates have not been searched"
            nobody: Answer = {"flag": None, "state": None, "count": 0}
            found.append({**nobody, "text": text, "query": "view=duplicates"})
        return {**described, "attention": found, "other": self._other()}

    def attention(self) -> Iterator[Attention]:
        """List what needs attention, as far as it is known by now."""
        yield from overview.attention_of(self.source)
        if (alike := self.search.alike) is not None:
            yield from similar_lines(self.source, alike)

    def latents(self, given: Parameters) -> Answer:
        """Say how latents become pictures, and whether they look like their images."""
        found = []
        for component in self.pictures.latents:
            agreement = self.pictures.agreement(component)
            found.append(
                {
                    "component": component.name,
                    "label": self.pictures.label(component),
                    "agreement": None if agreement is None else round(agreement.own, 3),
                    "warning": unlike(component.name, agreement),
                }
            )
        return {"latents": found}

    def samples(self, given: Parameters) -> Answer:
        """Give a page of the samples that a query finds."""
        found = self._found(given)
        size = min(number(given, "size", _PAGE, 1, _LARGEST), _MOST)
        page = number(given, "page", 0, 0, _LARGEST)
        some = found[page * size : (page + 1) * size].tolist()
        return {
            "total": len(found),
            "page": page,
            "size": size,
            "samples": [self._brief(number) for number in some],
        }

    def sample(self, number: int, given: Parameters) -> Answer:
        """Give one sample in full, and its neighbours in what a query finds."""
        if given.get("brief"):
            return self._brief(number)
        answer = self._full(self.source, self.pictures, number)
        answer |= self._beside(number, given)
        answer["similar"] = self._similar(number)
        answer["other"], answer["differences"] = None, []
        other = self.number_there(number)
        if self.others is not None and other is not None:
            there = self.others.source
            answer["other"] = self._full(there, self.others, other)
            answer["differences"] = list(samples.differences(self.source, number, there, other))
        return answer

    def number_there(self, number: int) -> int | None:
        """Find a sample in the other source."""
        found = int(self._there[number])
        return found if found >= 0 else None

    def similar(self, given: Parameters) -> Answer:
        """Report on the search for similar samples; start it if asked to."""
        if given.get("start"):
            self.search.start()
        return self.search.report()

    def groups(self, given: Parameters) -> Answer:
        """Give groups of samples that are alike."""
        alike = self._alike()
        threshold = number(given, "threshold", similar.DEFAULT, 0, 1)
        page = number(given, "page", 0, 0, _LARGEST)
        found = alike.found.groups(max(threshold, similar.FLOOR))
        return {
            "groups": len(found),
            "samples": sum(map(len, found)),
            "page": page,
            "items": [
                {
                    "size": len(group),
                    "similarity": _weakest(alike.found, group),
                    "samples": [self._brief(n) for n in group[:_SIDE_BY_SIDE].tolist()],
                }
                for group in found[page * _GROUPS : (page + 1) * _GROUPS]
            ],
        }

    def map(self, given: Parameters) -> Answer:
        """Give points: the first two principal components of the vectors."""
        points, places = self._points, self._alike().places
        if not len(points):
            return {"n": [], "x": [], "y": [], "of": 0}
        shown = places[points].astype(np.float64)
        least, most = shown.min(axis=0), shown.max(axis=0)
        scaled = ((shown - least) / np.where(most > least, most - least, 1) * _GRID).round()
        x, y = scaled.astype(np.int64).T
        total = int(np.isfinite(places).all(axis=1).sum())
        return {"n": points.tolist(), "x": x.tolist(), "y": y.tolist(), "of": total}

    def colours(self, given: Parameters) -> Answer:
        """Give a colour for each point of the map."""
        points, by = self._points, given.get("by", "bucket")
        if by == "text":
            words = given.get("text", "").split()
            hits = [self.table.captions.having(word)[points] for word in words]
            share = np.mean(hits, axis=0) * 100 if hits else np.zeros(len(points))
            return {"legend": [], "codes": share.round().astype(int).tolist()}
        if by == "flag":
            codes = np.zeros(len(points), np.int64)
            for code, marked in enumerate(self.table.flags.values(), 1):
                codes[marked[points]] = code
            return {"legend": ["no flag", *self.table.flags], "codes": codes.tolist()}
        column = self.table.parts if by == "part" else self.table.buckets
        legend = [name or "none" for name in column.names]
        return {"legend": legend, "codes": column.codes[points].tolist()}

    def _found(self, given: Parameters) -> Numbers:
        return self.table.select(Query.of(given))

    def _brief(self, number: int) -> Answer:
        answer = samples.brief(self.source, number)
        return {**answer, "other": self.number_there(number)}

    def _full(self, source: Source, pictures: Previews, number: int) -> Answer:
        found = pictures.original(number)
        image = found and {
            "width": found.size.width,
            "height": found.size.height,
            "crop": found.crop,
            "path": found.path,
            "note": found.note,
        }
        labels = [
            {"component": component.name, "label": pictures.label(component)}
            for component in pictures.latents
        ]
        return {**samples.full(source, number), "image": image, "latents": labels}

    def _beside(self, number: int, given: Parameters) -> Answer:
        found = self._found(given)
        (places,) = np.nonzero(found == number)
        if not len(places):
            return {"previous": None, "next": None}
        place = int(places[0])
        return {
            "previous": int(found[place - 1]) if place else None,
            "next": int(found[place + 1]) if place + 1 < len(found) else None,
        }

    def _similar(self, number: int) -> list[Answer]:
        """Give the nearest sample, if it is known."""
        alike = self.search.alike
        nearest = -1 if alike is None else int(alike.found.nearest[number])
        if alike is None or nearest < 0:
            return []
        similarity = round(float(alike.found.similarity[number]), 4)
        return [{"n": nearest, "id": self.table.ids[nearest], "similarity": similarity}]

    def _alike(self) -> Alike:
        if self.search.alike is None:
            raise UsageError("similar samples are not known yet", fix="start the search first")
        return self.search.alike

    @property
    def _points(self) -> Numbers:
        places = np.flatnonzero(np.isfinite(self._alike().places).all(axis=1))
        step = max(1, -(-len(places) // _POINTS))
        return places[::step]

    def _compare(self, there: Table) -> None:
        """Mark which samples the other source has too, and which with another caption."""
        numbers = {image_id: n for n, image_id in enumerate(there.ids)}
        there_too = (numbers.get(image_id, -1) for image_id in self.table.ids)
        self._there = np.fromiter(there_too, np.int64, len(self.table))
        both = self._there >= 0
        changed = np.zeros(len(both), np.bool_)
        for n in np.flatnonzero(both).tolist():
            changed[n] = self.table.captions[n] != there.captions[int(self._there[n])]
        self.table.compared = {"both": both, "missing": ~both, "caption": changed}

    def _other(self) -> Answer | None:
        if self.others is None:
            return None
        here = set(self.table.ids)
        only = [image_id for image_id in self.others.source.table.ids if image_id not in here]
        counts = {name: int(marked.sum()) for name, marked in self.table.compared.items()}
        return {
            "path": self.others.source.name,
            "both": counts["both"],
            "only_here": counts["missing"],
            "captions": counts["caption"],
            "only_there": only[:_LISTED],
            "only_there_count": len(only),
        }


def _query(each: Attention) -> str | None:
    """Give the query of a link to the samples that something is about."""
    if each.flag:
        return f"flag={each.flag}"
    return urlencode({"state": each.state}) if each.state else None


def similar_lines(source: Source, alike: Alike) -> Iterator[Attention]:
    """List what follows from the vectors."""
    groups = alike.found.groups(similar.DEFAULT)
    if groups:
        count = sum(map(len, groups))
        text = f"{quantity(count, 'samples')} in {quantity(len(groups), 'groups')} are nearly alike"
        by = source.vector.name if source.vector else ""
        text += f" ({by}: cosine {similar.DEFAULT} or more)"
        yield Attention(text, count, NEAR_DUPLICATE)
        yield from overview.in_parts(source, alike.found)
    if count := int(source.table.flags[OUTLIER].sum()):
        verb = "resembles" if count == 1 else "resemble"
        yield Attention(f"{quantity(count, 'samples')} {verb} no other", count, OUTLIER)


def unlike(name: str, agreement: Agreement | None) -> str | None:
    """Warn of latents that do not look like their images.

    Pictures of one kind resemble each other, so each must be much more like its own.
    """
    if agreement is None or agreement.own >= (1 + max(agreement.others, 0)) / 2:
        return None
    return (
        f"the {name} latents do not look like their images (correlation {agreement.own:.2f}, "
        f"with other images {agreement.others:.2f}): were they made by another model, or from "
        "other images?"
    )


def number(given: Parameters, name: str, default: Number, least: int, most: int) -> Number:
    """Read a number of a request; it is a whole one if the default is."""
    kind, text = type(default), given.get(name) or str(default)
    try:
        value = kind(text)
    except ValueError:
        value = kind(-1)
    if not least <= value <= most:
        what = "whole number" if kind is int else "number"
        raise UsageError(f"{name} is {text!r}", fix=f"give a {what} from {least} to {most:,}")
    return value


def _weakest(found: similar.Similar, group: Numbers) -> float:
    """Give the weakest link that holds a group together."""
    inside = np.isin(found.first, group) & np.isin(found.second, group)
    return round(float(found.strength[inside].min()), 4)
