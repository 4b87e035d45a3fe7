"""How a PyTorch run is spread over ranks: groups, meshes, DTensors, parameters, pipelines, context parallelism."""
