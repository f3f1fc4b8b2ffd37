"""The simulated pulumi-eks: a component provider whose children are made by the simulated AWS."""
