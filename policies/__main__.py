"""The policy pack as a directory: Pulumi's Python host runs this file."""

import sys

from terrace_policies.pack import serve

serve(sys.argv[1:])
