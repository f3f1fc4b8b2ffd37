"""Which models may serve a request, in which order, and why."""

from terrace_gateway.matching.candidates import Candidate, Considered, Excluded, Match
from terrace_gateway.matching.hints import Hints, NoCandidateError, parse_hints
from terrace_gateway.matching.matcher import Matcher

__all__ = [
    "Candidate",
    "Considered",
    "Excluded",
    "Hints",
    "Match",
    "Matcher",
    "NoCandidateError",
    "parse_hints",
]
