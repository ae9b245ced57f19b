"""What `tuner inspect` says of a prediction: the terms of each launch, in a user's words."""

from collections.abc import Sequence

from tuner.arch import GPU
from tuner.cli.output import table
from tuner.compiler.cubin import Cubin
from tuner.evaluate.predict.compiled import predict_launches
from tuner.evaluate.predict.cost import MODEL, TERMS, in_turn
from tuner.results.attempt import Prediction
from tuner.spec.instance import Instance

_LEAST = 0.005  # of the whole cost: smaller terms are not printed

Named = tuple[str, Prediction]  # a kernel's, or of all together


def predicted(instance: Instance, gpu: GPU, cubin: Cubin) -> tuple[Named, ...]:
    """What each launch is predicted to cost and, where there are several, all of them in turn."""
    found = predict_launches(instance, gpu, cubin)
    whole = [("together", in_turn([prediction for _, prediction in found]))] if len(found) > 1 else []
    return (*found, *whole)


def print_predicted(found: Sequence[Named]) -> None:
    """A row a term, the heaviest of the last column first: what it alone would cost, over the cost of all."""
    whole, names = found[-1][1], [name for name, _ in found]
    terms = {term: float(cost) / whole.cost for term, cost in whole.terms.items()}
    heaviest = sorted((term for term in terms if terms[term] > _LEAST), key=lambda term: -terms[term])
    table(
        f"predicted cost ({MODEL}): a rank, not a time. Terms overlap, so that they do not add up; "
        f"{whole.bottleneck} binds",
        ("term", *names, "what it stands for"),
        [
            *(
                (term, *(_share(each.terms.get(term, 0.0), whole) for _, each in found), TERMS[term])
                for term in heaviest
            ),
            ("cost", *(_share(each.cost, whole) for _, each in found), "of all terms together"),
        ],
        right=names,
    )


def _share(cost: float | str, whole: Prediction) -> str:
    return f"{float(cost) / whole.cost:.0%}"
