"""Development sessions: ``nox`` runs lint, types and tests; ``nox -s torch-2.11`` one version."""

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"

TORCH_VERSIONS = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, with the configuration in pyproject.toml."""
    session.install("-c", "constraints.txt", "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Everything, on the torch of constraints.txt."""
    session.install("-c", "constraints.txt", "-e", ".[dev]")
    session.run("pytest", "-n", "2", *session.posargs)


def _on_torch(version: str) -> None:
    @nox.session(name=f"torch-{'.'.join(version.split('.')[:2])}")
    def on_torch(session: nox.Session) -> None:
        session.install(f"torch=={version}", "-e", ".[dev]")
        session.run("pytest", "-n", "2", *session.posargs)


for _version in TORCH_VERSIONS:
    _on_torch(_version)
