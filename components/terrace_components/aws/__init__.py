"""Components of the AWS substrate. Each can be taken alone, or given what exists already."""
