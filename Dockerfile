# docker build -t revisit .                                                for a CPU, or a GPU by the wheels' own CUDA
# docker build -t revisit --build-arg BASE=nvidia/cuda:13.0.2-runtime-ubuntu24.04 .      with NVIDIA's libraries
# docker run --gpus all --shm-size 8g -v /data:/data revisit revisit doctor
ARG BASE=python:3.12-slim
FROM ${BASE}
# git: version of the source in environment.json; gcc: torch's compiled kernels; python3-venv: where BASE has no Python.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ git make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /revisit
COPY . .
RUN make env
ENV PATH=/revisit/.venv/bin:${PATH}
CMD ["revisit", "doctor"]
