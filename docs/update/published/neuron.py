"""Published throughputs of the tutorials of NeuronX Distributed on trn1.32xlarge.

Sources: aws-neuron/aws-neuron-sdk, NeuronX Distributed with Autocast:BF16+FP32Optimizer. Llama 2:
general/benchmarks/trn1/training_data_decoder.csv at commit 1351ee12 (Neuron 2.16); Llama 3.1:
about-neuron/benchmarks/trn1/training_data_decoder.csv at commit 7c165a3e (Neuron 2.24).
"""

SEQUENCES_PER_S = {
    "neuron_llama2_7b": 93.3,
    "neuron_llama2_13b": 85.65,
    "neuron_llama2_70b": 15.34,
    "neuron_llama31_8b": 47.95,
    "neuron_llama31_70b": 7.94,
}
"""By scenario, which has the published topology and batch of 1,024 sequences."""
