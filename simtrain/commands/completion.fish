# Completion of simtrain.
function _simtrain
    set -l words (commandline -opc) (commandline -ct)
    _SIMTRAIN_COMPLETE=fish simtrain $words[2..-1]
end
complete -c simtrain -a '(_simtrain)'
