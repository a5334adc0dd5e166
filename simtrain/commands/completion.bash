# Completion of simtrain.
_simtrain() {
    local IFS=$'\n'
    COMPREPLY=($(_SIMTRAIN_COMPLETE=bash simtrain "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _simtrain simtrain
