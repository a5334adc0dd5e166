# Completion of simtrain.
_simtrain() {
    local -a names=("${(@f)$(_SIMTRAIN_COMPLETE=zsh simtrain "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compset -P '--*='
    compadd -a names || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _simtrain simtrain
