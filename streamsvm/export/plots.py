"""Plots with matplotlib: the learning curve of a run, and the decision boundary of a model with two features."""

from __future__ import annotations

import functools
import io
import itertools
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from river import base, compose

from streamsvm.core.explaining import COLOR_AGAINST, COLOR_FOR, to_plot_text
from streamsvm.files.container import ModelFileError
from streamsvm.files.messages import missing_package_error, short_repr
from streamsvm.files.model_file import write_file
from streamsvm.stream.progress import LearningCurve
from streamsvm.stream.rows import find_learner, split_pipeline
from streamsvm.stream.tables import TableEncoder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GRID_POINTS = 150  # along each side
_MIN_DEVIATIONS = 3.0  # standard deviations around the mean of each feature that the plot shows at least
_FORMATS_WITH_METADATA = ("png", "svg", "pdf", "ps", "eps")

#: Means and standard deviations of the two features, float64 [2] each.
_Moments = tuple[np.ndarray, np.ndarray]
#: Pairs of a row and its label.
LabelledRows = Iterable[tuple[Mapping[Any, Any], Any]]


class DrawingError(Exception):
    """A plot cannot be drawn or written. The message names the reason and the remedy."""


def check_plot_path(path: str | Path) -> None:
    """Raise `DrawingError` if `save_plot` could not write a file to this path: its suffix is not an image format, its folder is
    missing, or it is a folder itself. Raises MissingPackageError if matplotlib is not installed.

    Parameters
    ----------
    path
        The file of the plot. An existing file would be replaced.
    """
    path = Path(path)
    try:
        from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise missing_package_error("drawing", "matplotlib", "plot", error) from error

    formats = FigureCanvasBase.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        supported = ", ".join(f".{name}" for name in sorted(formats))
        raise DrawingError(f"{path}: its suffix is not an image format: end it in .png, .svg or .pdf (supported: {supported})")
    if path.is_dir():
        raise DrawingError(f"{path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise DrawingError(f"{path}: there is no folder {path.parent}: make it first")


def save_plot(path: str | Path, model: Any, curve: LearningCurve | None = None, rows: LabelledRows = ()) -> list[str]:
    """Save an image file with a plot of a learning curve and, next to it, of the decision boundary of a model with two features,
    with labelled ``rows`` over it. Returns the reasons why either part was left out, an empty list if both were drawn.

    Parameters
    ----------
    path
        The file. Its suffix is the format (png, svg, pdf and others that matplotlib writes). An existing file is replaced
        completely or not at all.
    model
        A model of this library or of river, or a pipeline. It is not changed.
    curve
        The learning curve, or None.
    rows
        Pairs of a row and its label, which are drawn over the boundary.

    Returns
    -------
    list of str
        For each part that was left out of the plot, the reason.

    Raises
    ------
    DrawingError
        Neither part can be drawn, or the file cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from river import datasets, preprocessing
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.plots import save_plot
    >>> from streamsvm.stream import IterableSource, LearningLoop
    >>> loop = LearningLoop(IterableSource(datasets.Bananas()), preprocessing.StandardScaler() | BSGDClassifier(budget=50))
    >>> end = loop.run(1000)
    >>> save_plot(pathlib.Path(tempfile.mkdtemp(), "bananas.png"), loop.model, loop.curve)
    []
    """
    check_plot_path(path)
    from matplotlib.figure import Figure  # noqa: PLC0415

    left_out: list[str] = []
    parts: list[Callable[[Axes], None]] = []
    if curve is not None and curve.points:
        parts.append(functools.partial(draw_curve, curve=curve))
    else:
        left_out.append(f"no learning curve: {'the model was saved without one' if curve is None else 'no row was scored yet'}")
    try:
        parts.append(_Boundary(model, rows).draw)
    except DrawingError as error:
        left_out.append(f"no decision boundary: {error}")
    if not parts:
        raise DrawingError(f"there is nothing to draw: {'; '.join(left_out)}")
    figure = Figure(figsize=(7.0 * len(parts), 5.5), layout="constrained")
    picture = io.BytesIO()
    try:
        for number, part in enumerate(parts, 1):
            part(figure.add_subplot(1, len(parts), number))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from")  # such characters are drawn as boxes
            suffix = Path(path).suffix[1:].lower()
            metadata = (
                {"Software" if suffix == "png" else "Creator": "written by streamsvm"}
                if suffix in _FORMATS_WITH_METADATA
                else None
            )
            figure.savefig(picture, format=suffix, dpi=110, metadata=metadata)
        write_file(Path(path), picture.getvalue())
    except (OSError, RuntimeError, ValueError, ImportError, ModelFileError) as error:  # some formats need external programs
        raise DrawingError(f"{path}: the picture was not written: {error}") from error
    return left_out


def draw_curve(axes: Axes, curve: LearningCurve) -> None:
    """Draw a learning curve into matplotlib axes: the metric against the number of rows, over all rows so far and over the latest
    rows, and as dashed lines the metric of the best trivial baseline on the same rows.

    Parameters
    ----------
    axes
        Axes of matplotlib.
    curve
        The learning curve of a `LearningLoop`, or from the header of its checkpoint (`LearningCurve.from_state`).
    """
    rows, metric, windowed, baseline = np.reshape([point[:4] for point in curve.points], (-1, 4)).T
    axes.plot(rows, metric, color="black", label="all rows so far")
    axes.plot(rows, windowed, color=COLOR_FOR, alpha=0.8, label=f"last {curve.window:,} rows")
    if np.isfinite(baseline).any():
        axes.plot(rows, baseline, color="grey", linestyle="--", label="guessing")
    windowed_baseline = np.array([point.windowed_baseline for point in curve.points])
    if np.isfinite(windowed_baseline).any():
        axes.plot(rows, windowed_baseline, color=COLOR_FOR, alpha=0.8, linestyle="--", label="guessing these")
    axes.set(xlabel="row", ylabel=to_plot_text(curve.metric), title="Each row is predicted before it is learned")
    axes.xaxis.set_major_formatter(lambda row, _: f"{row:,.0f}")
    axes.grid(alpha=0.3)
    axes.legend()


def draw_boundary(axes: Axes, model: Any, rows: LabelledRows = ()) -> None:
    """Draw the decisions of a model with two features into matplotlib axes, as coloured regions with boundaries, together with
    its support vectors and labelled ``rows``.

    Both are drawn in the units of the rows. The decisions are those of the whole pipeline; for regression, its predictions are
    drawn. The region includes the support vectors, ``rows``, and three standard deviations around the means of a scaler (a
    transformer with ``means`` and ``vars``, like river's StandardScaler). Support vectors are left out if the transformers do
    not scale each feature separately.

    Parameters
    ----------
    axes
        Axes of matplotlib.
    model, rows
        As in `save_plot`.

    Raises
    ------
    DrawingError
        The model has learned nothing, does not have two features, or computes them from other ones.
    """
    _Boundary(model, rows).draw(axes)


class _Boundary:
    """The decisions of a model on a grid of rows, computed before drawing. Raises DrawingError if that fails."""

    def __init__(self, model: Any, rows: LabelledRows) -> None:
        self._transformers, self._final = split_pipeline(model)
        self._learner = find_learner(model)
        scaler = _find_scaler(model)
        self._names = _list_two_features(self._learner, scaler)
        try:
            self._rows = [([float(x.get(name, 0.0)) for name in self._names], y) for x, y in rows]
            counts = getattr(scaler, "counts", self._names)
            columns = next((step.learned_columns for step in self._transformers if isinstance(step, TableEncoder)), counts)
            is_derived = bool(set(self._names) - set(columns))  # such as one-hot columns
            if is_derived or (hasattr(self._learner, "feature_names") and set(self._transform(0.0, 0.0)) != set(self._names)):
                raise DrawingError(f"its features are computed from others than {' and '.join(map(short_repr, self._names))}")
            moments = _read_moments(scaler, self._names)
            is_unscaled = all(isinstance(step, TableEncoder) and step.learned_scaler is None for step in self._transformers)
            scale = getattr(self._learner, "scale_in_use", None)
            if moments is None and scale is not None and is_unscaled:
                order = [self._learner.feature_names.index(name) for name in self._names]
                moments = scale.location[order], scale.spread[order]
            self._vectors = self._unscale_support_vectors(moments)
            self._sides = self._choose_grid(moments)
            grid = itertools.product(self._sides[1].tolist(), self._sides[0].tolist())
            self._set_decisions([self._decide(self._transform(x, y)) for y, x in grid])
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:  # from any step of the pipeline
            names = " and ".join(map(short_repr, self._names))
            raise DrawingError(f"the model does not predict rows of {names} alone: {error}") from error

    def _transform(self, x: float, y: float) -> Any:
        """Pass a row with the values x and y of the two drawn features through the pipeline's transformers. Returns the dict of
        features that the final model receives.
        """
        features: dict[Hashable, Any] = {self._names[0]: x, self._names[1]: y}
        for step in self._transformers:
            features = step.transform_one(features)
        return features

    def _transform_point(self, point: np.ndarray) -> np.ndarray:
        """Pass a point, the values of the two drawn features, float64 [2], through the pipeline's transformers. Returns the two
        features that the final model receives, float64 [2].
        """
        features = self._transform(*point.tolist())
        return np.array([features[name] for name in self._names], np.float64)

    def _unscale_support_vectors(self, moments: _Moments | None) -> np.ndarray:
        """Return the model's support vectors in the original units of the two drawn features, float64 [n, 2]. ``moments`` are the
        features' means and standard deviations, if known. The result is empty if the scaling cannot be inverted.
        """
        vectors = getattr(self._learner, "support_vectors", None)
        if vectors is None or np.shape(vectors)[1:] != (2,):
            return np.empty((0, 2))
        scale = getattr(self._learner, "scale_in_use", None)
        if scale is not None:
            vectors = scale.inverse_transform(vectors)
        at_zero = self._transform_point(np.zeros(2))
        slopes = self._transform_point(np.ones(2)) - at_zero
        candidates = [] if moments is None else [moments]
        if slopes.all():  # any linear scaling, such as by scalers without means, or without a scaler
            candidates.append((-at_zero / slopes, 1.0 / slopes))
        for origin, unit in candidates:
            # Check the scaling at a point half a unit from the origin.
            step, scaled = np.where(unit == 0.0, 1.0, 0.5 * unit), np.where(unit == 0.0, 0.0, 0.5)
            if np.allclose(self._transform_point(origin + step), scaled, atol=1e-3):
                return origin + unit * vectors
        return np.empty((0, 2))

    def _choose_grid(self, moments: _Moments | None) -> np.ndarray:
        """Return 150 coordinates along each of the two drawn features, float64 [2, 150], for a grid that contains the support
        vectors, the rows, and three standard deviations around the mean (from ``moments``, if known). Raises DrawingError if all
        of these are missing.
        """
        bounds = [*self._vectors, *(point for point, _ in self._rows)]
        if moments is not None:
            means, deviations = moments
            bounds += [means - _MIN_DEVIATIONS * deviations, means + _MIN_DEVIATIONS * deviations]
        if not bounds:
            raise DrawingError(
                f"the range of {' and '.join(map(short_repr, self._names))} is unknown: there is neither a scaler with means and "
                "variances, nor are there support vectors in the units of the rows"
            )
        low, high = np.min(bounds, axis=0), np.max(bounds, axis=0)
        margin = np.where(high > low, 0.05 * (high - low), 1.0)
        return np.linspace(low - margin, high + margin, _GRID_POINTS).T

    def _decide(self, features: Any) -> Any:
        """Return the decision of the pipeline's final model for a dict of ``features``: a predicted number, a decision value, or
        a dict of label to decision value or probability. Raises DrawingError for other models.
        """
        if isinstance(self._final, base.Regressor):
            return self._final.predict_one(features)
        if hasattr(self._final, "decision_function_one"):
            return self._final.decision_function_one(features)
        if not isinstance(self._final, base.Classifier):
            raise DrawingError(f"{type(self._final).__name__} predicts neither labels nor numbers")
        try:
            return self._final.predict_proba_one(features)
        except NotImplementedError:
            return {self._final.predict_one(features): 1.0}

    def _set_decisions(self, decisions: list[Any]) -> None:
        """Store the model's decisions at the grid points (numbers, or dicts of label to number) in this object, as an array [150,
        150] or [150, 150, labels], with the list of labels. Raises DrawingError if they are not finite, or without a label.
        """
        labels: list[Any] = []
        if isinstance(decisions[0], dict):
            labels = _sort_labels({label for decision in decisions for label in decision})
            values = np.array([[decision.get(label, 0.0) for label in labels] for decision in decisions])
            if len(labels) == 2:
                values = values[:, 1] - values[:, 0]
        else:
            values = np.array(decisions, np.float64)
            if len(learned_labels := getattr(self._final, "labels", ())) == 2:
                labels = sorted(learned_labels, key=lambda label: label == self._final.positive_label)
        if values.size == 0 or not np.isfinite(values).all():
            raise DrawingError("some of its decision values are not finite" if values.size else "it has learned no label")
        self._labels, self._values = labels, values.reshape(_GRID_POINTS, _GRID_POINTS, *values.shape[1:])

    def draw(self, axes: Axes) -> None:
        """Draw the model's decisions on the grid, the rows and the support vectors into matplotlib axes, with a legend."""
        import matplotlib as mpl  # noqa: PLC0415
        from matplotlib.patches import Patch  # noqa: PLC0415

        if self._values.ndim == 3:
            palette = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
            # tab20 alternates strong and pale colours: use the strong ones first.
            colours = [palette[(2 * i + i // 10) % 20] for i in range(len(self._labels))]
            self._draw_regions(axes, colours)
        else:
            colours = [COLOR_AGAINST, COLOR_FOR]
            self._draw_values(axes)
        label_colours = dict(zip(self._labels, colours, strict=False))
        handles: list[Any] = [
            Patch(color=colour, alpha=0.6, label=f"label {to_plot_text(label)}") for label, colour in label_colours.items()
        ]
        for label, colour in label_colours.items():
            x, y = np.reshape([point for point, row_label in self._rows if row_label == label], (-1, 2)).T
            axes.scatter(x, y, s=3, color=colour, alpha=0.35)
        if len(self._vectors):
            size = min(max(4000.0 / len(self._vectors), 6.0), 50.0)
            x, y = self._vectors.T
            handles.append(axes.scatter(x, y, s=size, facecolors="none", edgecolors="black", label="support vectors"))
        if handles:
            axes.legend(handles=handles, loc="upper right")
        (left, *_, right), (bottom, *_, top) = self._sides
        title = to_plot_text(type(self._learner).__name__)
        if hasattr(self._learner, "n_support"):
            title += f", {self._learner.n_support:,} support vectors, {self._learner.nbytes / 1024:,.0f} KiB"
        axes.set(xlim=(left, right), ylim=(bottom, top), title=title)
        axes.set(xlabel=f"feature {to_plot_text(self._names[0])}", ylabel=f"feature {to_plot_text(self._names[1])}")

    def _draw_values(self, axes: Axes) -> None:
        """Draw one number per grid point into matplotlib axes as coloured levels: the predictions of a regressor with a colour
        bar, or the decision values for two labels, with a black line at 0.
        """
        values = self._values
        if isinstance(self._final, base.Regressor):
            low, high = values.min(), values.max()
            levels = np.linspace(low, max(high, low + 1e-6 * max(abs(low), 1.0)), 22)
            axes.figure.colorbar(axes.contourf(*self._sides, values, levels=levels), ax=axes, label="prediction")
            return
        limit = np.quantile(np.abs(values), 0.9) or 1.0
        clipped, levels = np.clip(values, -limit, limit), np.linspace(-limit, limit, 22)
        axes.contourf(*self._sides, clipped, levels=levels, cmap="RdBu", alpha=0.55)
        if values.min() < 0.0 < values.max():
            axes.contour(*self._sides, values, levels=[0.0], colors="black", linewidths=2)

    def _draw_regions(self, axes: Axes, colours: list[Any]) -> None:
        """Draw a region in matplotlib axes for each of several labels, where its decision value is the largest, in its colour
        from ``colours``, with black lines between the regions.
        """
        for number, colour in enumerate(colours):
            lead = self._values[..., number] - np.delete(self._values, number, axis=2).max(axis=2, initial=-np.inf)
            lead = np.nan_to_num(lead, posinf=1.0)  # infinite for a single label
            if lead.max() > 0.0:
                axes.contourf(*self._sides, lead, levels=[0.0, lead.max()], colors=[colour], alpha=0.4)
            if lead.min() < 0.0 < lead.max():
                axes.contour(*self._sides, lead, levels=[0.0], colors="black", linewidths=1)


def _find_scaler(model: Any) -> Any:
    """Return the first transformer of a river pipeline that knows the features' ``means``, such as a StandardScaler, also if it
    is the scaler inside a TableEncoder. Returns None if the pipeline does not contain one.
    """
    steps = list(model.steps.values())[:-1] if isinstance(model, compose.Pipeline) else []
    scalers = (step.learned_scaler if isinstance(step, TableEncoder) else step for step in steps)
    return next((scaler for scaler in scalers if hasattr(scaler, "means")), None)


def _list_two_features(learner: Any, scaler: Any) -> list[Any]:
    """Return the names of the two features of a ``learner``, or if it does not list them, those that its ``scaler`` has seen.
    Raises DrawingError if they are unknown, or not exactly two.
    """
    names = getattr(learner, "feature_names", None)
    if names is None:
        names = getattr(scaler, "counts", None)
    if names is None:
        raise DrawingError(f"the features of {type(learner).__name__} are unknown")
    if len(names) != 2:
        raise DrawingError(f"it is drawn for two features, and the model has {len(names) or 'learned none'}")
    return list(names)


def _read_moments(scaler: Any, names: list[Any]) -> _Moments | None:
    """Return the means and the standard deviations of the two features ``names``, float64 [2] each, as a river scaler has learned
    them. Returns None if the scaler does not have them for both.
    """
    try:
        moments = np.array([[scaler.means[name], scaler.vars[name]] for name in names if name in scaler.counts], np.float64)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return (moments[:, 0], np.sqrt(moments[:, 1])) if moments.shape == (2, 2) and (moments[:, 1] >= 0.0).all() else None


def _sort_labels(labels: Iterable[Any]) -> list[Any]:
    """Return labels in ascending order, or in the order of their texts if they cannot be compared (numbers with strings)."""
    try:
        return sorted(labels)
    except TypeError:  # labels of several types
        return sorted(labels, key=str)
