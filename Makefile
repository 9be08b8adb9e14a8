# The project's commands; see README.md. `make help` lists them.
# Another torch than requirements.txt names, as in `make test TORCH=2.11.0`: with an environment and a build folder of
# its own. The modules of the last `make build` are those in torchshare/.
TORCH =
VENV := .venv$(TORCH:%=-%)
PYTHON3 ?= python3
PY := $(VENV)/bin/python
JOBS := $(shell nproc)
# Each process has torch in memory, and a part of the files: tests of a file share what they have computed. One that has
# come to its end takes half of what another has left. Two more than there are cores, at most 8, because many tests wait.
PYTEST := $(PY) -m pytest -n $(shell n=$$(nproc); echo $$((n < 6 ? n + 2 : 8))) --dist worksteal
RAY = 2.60.0
# In one process, by test-cluster: without an address, Ray finds any cluster of the machine.
RAY_TESTS := $(wildcard tests/python/test_ray_*.py)
RAY_PAGE = tutorials/cluster
# The folder of setup.py, so that C++ tests and `_C` share object files.
BUILD = build/$(shell $(PYTHON3) -c 'import sys; print(sys.implementation.cache_tag)')$(TORCH:%=-torch-%)
export TORCHSHARE_BUILD_DIR = $(abspath $(BUILD))
CMAKE_BUILD := cmake --build
# The generator of new build folders; setup.py does the same.
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja),Ninja,Unix Makefiles)
# Set in many containers: each of the tests' processes would compile torch's 2,500 Python files to import them.
unexport PYTHONDONTWRITEBYTECODE
UV = 0.13.9
# INSTALL PYTHON ARGUMENTS: installs with uv, in a quarter of the time of pip. With an index of pip's configuration, which uv
# does not read, and where uv fails, pip does.
INSTALL = install() { python=$$1; shift; \
  { ! $(PY) -m pip config list | grep -q index && UV_FIND_LINKS=$$PIP_FIND_LINKS $(VENV)/bin/uv pip install --quiet --python $$python "$$@"; } || \
  $(PY) -m pip --python $$python install --disable-pip-version-check --no-compile "$$@"; }; install

.PHONY: docs help demo test test-slow build wheel sdist lint bench clean prerequisites test-cpp test-python test-python-slow \
  test-loaded test-waits test-oldest test-versions papers server test-tsan test-asan soak build-emulator test-emulated \
  test-emulated-slow test-emulated-all test-cluster build-benchmarks bench-instructions free-threaded test-free-threaded
ifndef BESIDE
.NOTPARALLEL:  # several targets configure the same build folder
endif
help:
	@echo "make demo   set up, build, and train two models together (examples/digits_pair.py)"
	@echo "make test   set up, build, lint, run the C++ tests and the Python tests that are not slow"
	@echo "make test-slow   the slow ones: compilations, sanitizers, Ray, the soak"
	@echo "make test-oldest   with the oldest torch that is supported, the C++ tests and the Python tests of what differs"
	@echo "make test-loaded   the C++ and Python tests that are not slow, beside four busy loops"
	@echo "make test-emulated   the GPU tests on an emulated CUDA device (tests/emulator/README.md)"
	@echo "make test-emulated-slow   the slow ones, and every stage of the GPU benchmarks with tiny sizes"
	@echo "make test-cluster   the tests of torchshare cluster, with Ray"
	@echo "make free-threaded   a Python without the GIL, with torchshare, in .venv-free-threaded"
	@echo "make test-free-threaded   tests of what jobs share, with the GIL off"
	@echo "make papers   the tables of the papers that are implemented here, simulated"
	@echo "make server   a server that answers requests beside a training, and a picture of its latencies"
	@echo "make wheel | sdist   a wheel for this torch and this Python; the sources that it is built from; in dist/"
	@echo "make docs   the documentation as a site, in build/docs"
	@echo "make test TORCH=2.11.0   the same with that torch, in .venv-2.11.0; so do the other targets"
	@echo "make bench-instructions   compare the instructions on the hot paths with those that are recorded"
	@echo "make build | lint | bench | clean | prerequisites"

demo: build
	$(PY) examples/digits_pair.py

BESIDE_EACH_OTHER = $(MAKE) --no-print-directory --jobs=3 --output-sync=target BESIDE=yes

# mypy leaves a core idle, and so do tests that wait. Where there is much to compile, the compilers load the machine as the loops
# of test-loaded do.
test: build
	$(BESIDE_EACH_OTHER) lint test-cpp test-waits
	$(MAKE) --no-print-directory BESIDE=yes test-python EXCEPT="$(WAITS)"

# No stage leaves a core idle. Ray is installed before the stage: the other targets use the environment meanwhile.
test-slow: build
	$(BESIDE_EACH_OTHER) docs test-tsan test-oldest
	$(MAKE) --no-print-directory BESIDE=yes $(VENV)/ray-$(RAY)
	$(BESIDE_EACH_OTHER) test-emulated test-python-slow test-cluster
	$(BESIDE_EACH_OTHER) test-asan soak bench-instructions

# The first build takes minutes and shows its progress. BESIDE: the target that runs this one has done it.
build: $(VENV)/ready
	$(if $(BESIDE),,$(PY) -m pip install $(if $(wildcard $(BUILD)/CMakeCache.txt),--quiet,--verbose) --no-build-isolation --no-deps -e .)

$(VENV)/ready: requirements.txt
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh build
	$(PYTHON3) -m venv $(VENV)
	sed 's/^torch==[^;]*/$(if $(TORCH),torch==$(TORCH),&)/' requirements.txt > $(VENV)/requirements.txt
	-$(PY) -m pip install --disable-pip-version-check --no-compile --quiet uv==$(UV)
	$(INSTALL) $(PY) --requirement $(VENV)/requirements.txt
	@touch $@

# From the build folder of `make build`. The folders of setuptools would keep files that are gone.
wheel: $(VENV)/ready
	rm -rf build/lib.* build/bdist.* dist/*.whl
	$(PY) -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@rm -rf torchshare.egg-info  # torchshare.__version__ would be read from there
	@du -h dist/*.whl

sdist: $(VENV)/ready
	rm -f dist/*.tar.gz
	$(PY) setup.py --quiet sdist
	@rm -rf torchshare.egg-info  # torchshare.__version__ would be read from there
	@du -h dist/*.tar.gz

$(VENV)/docs: docs/requirements.txt $(VENV)/ready
	$(INSTALL) $(PY) --requirement $<
	@touch $@

lint: build
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp')

test-cpp: build
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh test
	cmake -B $(BUILD) -DTORCHSHARE_TESTS=ON >/dev/null
	$(CMAKE_BUILD) $(BUILD) --parallel $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure

test-python: build
	$(PYTEST) -m "not slow and not gpu" $(RAY_TESTS:%=--ignore=%) $(EXCEPT:%=--ignore=%)
	$(PY) -m pytest -m "gpu and not slow"  # in one process: they share the GPU

test-python-slow: build
	$(PYTEST) -m slow --durations 15 $(RAY_TESTS:%=--ignore=%) -k "not $(RAY_PAGE)"

# What depends on torch's version.
VERSIONS = $(patsubst %,tests/python/test_%.py,torch_versions patches compiled_step step_cache compiled_inference)
test-versions: build
	$(PYTEST) -m "not slow and not gpu" $(VERSIONS)

# With another torch than that of .venv: this environment installs only torch. CUDA's libraries, which are larger, and the other
# packages are those of .venv (both are for CUDA 13). The build is not optimized, because its tests run once.
# torchshare_core_tests are left out: they do not use torch.
OLDEST := $(shell sed -n 's/.*"torch>=\([0-9.]*\)".*/\1.0/p' pyproject.toml)
OLDEST_BUILD = build/oldest-$(OLDEST)
OLDEST_VENV = .venv-oldest-$(OLDEST)
test-oldest: $(OLDEST_VENV)/ready
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh test
	cmake -S . -B $(OLDEST_BUILD) -DTORCHSHARE_PYTHON=$(abspath $(OLDEST_VENV)/bin/python) -DTORCHSHARE_TESTS=ON \
	  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 >/dev/null
	$(CMAKE_BUILD) $(OLDEST_BUILD) --target torchshare_tests python_modules --parallel $(JOBS)
	ctest --test-dir $(OLDEST_BUILD) --output-on-failure --tests-regex '^torchshare_tests$$'
	scripts/link_package.sh $(OLDEST_BUILD) _C _core
	cd $(OLDEST_BUILD)/python && PYTHONPATH=$$PWD $(abspath $(OLDEST_VENV)/bin)/python $(wordlist 2,99,$(PYTEST)) \
	  -m "not slow and not gpu" $(abspath $(VERSIONS))

$(OLDEST_VENV)/ready: $(VENV)/ready
	$(PYTHON3) -m venv --clear --without-pip $(@D)
	$(INSTALL) $(@D)/bin/python --no-deps torch==$(OLDEST)
	packages=$$(echo $(abspath $(VENV))/lib/python*/site-packages); cd $(@D)/lib/python*/site-packages && \
	ln -s $$packages/nvidia nvidia && echo $$packages > packages.pth
	@touch $@

# A Python without the GIL, with torchshare: .venv-free-threaded/bin/python. See docs/howto/free-threaded.md. Its torch is the newest
# one that has wheels for the Python that scripts/free_threaded.sh builds, and so are its versions of pydantic and psutil.
FREE = build/free-threaded
FREE_PYTHON = build/python-free-threaded
FREE_VENV = .venv-free-threaded
FREE_TORCH = 2.12.0
free-threaded: $(FREE_VENV)/ready
	cmake -S . -B $(FREE) -DTORCHSHARE_PYTHON=$(abspath $(FREE_VENV)/bin/python) >/dev/null
	$(CMAKE_BUILD) $(FREE) --target python_modules --parallel $(JOBS)
	cp --remove-destination $(FREE)/_C.*.so $(FREE)/_core.*.so torchshare

$(FREE_VENV)/ready: $(VENV)/ready $(FREE_PYTHON)/made
	$$(readlink -f $(FREE_PYTHON)/bin/python3) -m venv --clear $(@D)
	sed -e 's/^torch==.*/torch==$(FREE_TORCH)/' -e 's/^pydantic==.*/pydantic==2.12.3/' -e 's/^psutil==.*/psutil==7.2.2/' \
	  -e '/^# lint/,$$d' requirements.txt | uniq > $(@D)/requirements.txt
	$(INSTALL) $(@D)/bin/python --requirement $(@D)/requirements.txt
	echo $(CURDIR) > $$(echo $(@D)/lib/python*/site-packages)/torchshare.pth
	@touch $@

$(FREE_PYTHON)/made:
	scripts/free_threaded.sh $(abspath $(FREE_PYTHON))

# The Python tests of what jobs share and what interrupts them, with the GIL off. torch.compile is refused in jobs there.
FREE_TESTS = $(patsubst %,tests/python/test_%.py,cancel free_threading identity jobs replacements settings shared_torch signals step_forms \
  threads)
test-free-threaded: free-threaded
	$(FREE_VENV)/bin/python -VV
	PYTHON_GIL=0 $(FREE_VENV)/bin/python $(wordlist 2,99,$(PYTEST)) -m "not slow and not gpu" -k "not compil" $(FREE_TESTS)
	PYTHON_GIL=0 $(FREE_VENV)/bin/python tests/shared_state_soak.py --seconds 60

# The Python tests of what waits or is waited for.
WAITS = $(patsubst %,tests/python/test_%.py,cancel ends forks gaps groups jobs lifecycle request_batches requests serve \
  served_faults server_scripts shared_torch signals spill start stop_signals strict_gate threads watchdog)
test-waits: build
	$(PYTEST) -m "not slow and not gpu" $(WAITS)

# Beside four loops, which end with the shell that has started them, however it ends.
LOADED = test-cpp test-python
BUSY := import os; parent = os.getppid()\nwhile os.getppid() == parent: pass
test-loaded: build
	@loops=; for _ in 1 2 3 4; do printf '$(BUSY)' | $(PYTHON3) - & loops="$$loops $$!"; done; \
	$(MAKE) --no-print-directory $(LOADED); status=$$?; kill $$loops; exit $$status

# The tests marked gpu, on a CUDA device that is emulated: SLOTS:JITTER, kernels at a time and microseconds.
build-emulator: build
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh test
	cmake -B $(BUILD) -DTORCHSHARE_EMULATOR=ON >/dev/null
	$(CMAKE_BUILD) $(BUILD) --target emulator --parallel $(JOBS)

test-emulated: build-emulator
	BUILD=$(BUILD) PY=$(PY) scripts/test_emulated.sh 4:0 1:200

# The slow ones, among them every stage of benchmarks/gpu with tiny sizes.
test-emulated-slow: build-emulator
	MARKED="gpu and slow" BUILD=$(BUILD) PY=$(PY) scripts/test_emulated.sh 4:0

test-emulated-all: build-emulator
	MARKED=gpu AGAIN=tests/python BUILD=$(BUILD) PY=$(PY) scripts/test_emulated.sh 1:0 1:200 1:2000 4:0 4:200 4:2000

# torchshare and the emulated device with a sanitizer: the C++ tests with threads, and pairs of Python jobs. `_core`, which has
# no threads, is that of `make build`.
test-tsan test-asan: build-emulator
	cmake -S . -B build/$(@:test-%=%) -DTORCHSHARE_PYTHON=$(abspath $(PY)) -DTORCHSHARE_TESTS=ON -DTORCHSHARE_EMULATOR=ON \
	  -DTORCHSHARE_SANITIZE=$(SANITIZER) -DCMAKE_BUILD_TYPE=Debug >/dev/null
	$(CMAKE_BUILD) build/$(@:test-%=%) --target torchshare_tests _C emulated_device --parallel $(JOBS)
	ln -sf $(abspath $(BUILD))/tests/emulator/libtorchshare_emulator_numerics.so build/$(@:test-%=%)/tests/emulator/
	PY=$(PY) BUILD=build/$(@:test-%=%) scripts/run_sanitized.sh $(SANITIZER)
test-tsan: SANITIZER = thread
test-asan: SANITIZER = address,undefined

# Ray is large, and only these tests need it. They mostly wait for processes, to which Ray gives a niceness of 15 by default.
test-cluster: export RAY_worker_niceness = 0
test-cluster: build $(VENV)/ray-$(RAY)
	$(PY) -m pytest $(RAY_TESTS)
	$(PY) -m pytest tests/python/test_documents.py tests/python/test_cluster_cli.py -k "$(RAY_PAGE) or rays_calls"

$(VENV)/ray-$(RAY): $(VENV)/ready
	$(INSTALL) $(PY) "ray[default]==$(RAY)"
	@touch $@

# Jobs that start, suspend, resume, cancel and fail at random moments, and programs that are interrupted. In two processes:
# each keeps one core busy.
soak: build
	printf "%s\n" 1 2 | xargs -P 2 -I{} $(PY) tests/soak.py --rounds 50 --programs 5

# The tables of the papers, from traces in the repository: seconds.
papers: build
	$(PY) -m torchshare papers --save benchmarks/results/papers.json --plot benchmarks/results/papers.png --report build/papers.html
	@echo "build/papers.html is the page"

# A server alone, beside a training, and with a promise: its latencies as docs/tutorials/serve.md shows them.
server: build
	$(PY) examples/server.py --rounds 3 --seconds 8 --picture benchmarks/results/server.png

# The pages of docs/ as a site, in build/docs. A warning is an error.
docs: build $(VENV)/docs
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh docs
	$(PY) -m sphinx -q -W --keep-going -b html docs build/docs

build-benchmarks: build $(if $(BESIDE),| build-emulator)  # they configure the same folder
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh bench
	cmake -B $(BUILD) -DTORCHSHARE_BENCHMARKS=ON >/dev/null
	$(CMAKE_BUILD) $(BUILD) --parallel $(JOBS)

bench: build-benchmarks
	BUILD=$(BUILD) PY=$(PY) benchmarks/run_all.sh

# Fails if a hot path takes more instructions than benchmarks/results/instructions.json says. A busy machine changes nothing.
bench-instructions: build-benchmarks
	$(PY) benchmarks/instructions.py --check $(BUILD)/benchmarks/cpp/torchshare_instructions

# Installs what a bare Debian or Ubuntu lacks; needs root.
prerequisites:
	@PYTHON3=$(PYTHON3) scripts/check_prerequisites.sh install

clean:
	rm -rf build dist $(VENV) .venv-oldest-* torchshare/*.so torchshare/cpp *.egg-info
