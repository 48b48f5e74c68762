# Sourced by quickstart.sh and test.sh: makes or finds the Python environment that they run in.
# Afterwards $python is its interpreter.

# make_environment FOLDER CONSTRAINTS EXTRAS
make_environment() {
    local folder=$1 constraints=$2 extras=$3 base candidate options=()
    if [ -n "${VIRTUAL_ENV:-}" ] && [ "$folder" = .venv ]; then
        python=$VIRTUAL_ENV/bin/python
        echo "Using the active environment $VIRTUAL_ENV"
    else
        base=
        for candidate in python3 python3.14 python3.13 python3.12 python3.11 python; do
            if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
                base=$candidate
                break
            fi
        done
        if [ -z "$base" ]; then
            echo "Python 3.11 or newer is needed, and none was found on PATH." >&2
            return 1
        fi
        if [ ! -x "$folder/bin/python" ]; then
            # A torch that the machine already has is used rather than downloaded again.
            if [ "$folder" = .venv ] && "$base" -c 'import torch' 2>/dev/null; then
                options=(--system-site-packages)
            fi
            echo "Making the environment $folder with $("$base" --version)"
            "$base" -m venv "${options[@]}" "$folder"
        fi
        python=$folder/bin/python
    fi
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "Python 3.11 or newer is needed; $("$python" --version) is in use." >&2
        return 1
    }

    local pins begin=$SECONDS
    pins=$(mktemp)
    cp "$constraints" "$pins"
    if [ "$folder" = .venv ] && "$python" -c 'import torch' 2>/dev/null; then
        # Keep the installed torch, whatever its build.
        grep -v '^torch==' "$constraints" >"$pins" || true
        "$python" -c 'import torch; print("Keeping the installed torch", torch.__version__)'
    fi
    echo "Installing hf_seqmix[$extras] and what it needs:"
    local status_file
    status_file=$(mktemp)
    {
        "$python" -m pip install --disable-pip-version-check --progress-bar off -c "$pins" -e ".[$extras]" 2>&1
        echo $? >"$status_file"
    } | { grep -E '^ *(Downloading|Processing|Successfully installed|ERROR|error)|No space' || true; } |
        sed -E 's#^ *Downloading .*/([^/ ]+)#  downloading \1#; s#^ *Processing .*/#  from this machine: #'
    local status
    status=$(cat "$status_file")
    rm -f "$pins" "$status_file"
    if [ "$status" -ne 0 ]; then
        echo "Installing failed; 'pip install -c $constraints -e .[$extras]' says why." >&2
        return "$status"
    fi
    echo "Installed in $((SECONDS - begin)) s"
}
