# docker build -t revisit:0.1.0 .                                          for a CPU, or a GPU by the wheels' own CUDA
# docker build -t revisit:0.1.0 --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04 .      with NVIDIA's libraries
# docker run --gpus all --shm-size 8g -v /data:/data revisit:0.1.0 revisit doctor
# It runs as user 10001, who has to be allowed to write where outputs go: chown 10001 /data/output.
ARG BASE=python:3.12-slim
FROM ${BASE}
# git: version of the source in environment.json; gcc: torch's compiled kernels; python3-venv: where BASE has no Python.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ git make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home --uid 10001 revisit && install --directory --owner revisit --group revisit /revisit
WORKDIR /revisit
USER 10001
COPY --chown=10001:10001 . .
RUN make env
ENV PATH=/revisit/.venv/bin:${PATH}
CMD ["revisit", "doctor"]
