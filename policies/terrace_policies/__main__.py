"""``python -m terrace_policies``: the pack, started by Pulumi's engine."""

import sys

from terrace_policies.pack import serve

serve(sys.argv[1:])
