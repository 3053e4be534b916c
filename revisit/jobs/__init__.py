"""Who makes the parts of a job: processes of this machine, those of torchrun or of a SLURM array, or Ray's."""
