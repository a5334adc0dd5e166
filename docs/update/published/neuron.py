"""Published throughputs of the tutorials of NeuronX Distributed on trn1.32xlarge.

Source: aws-neuron/aws-neuron-sdk, general/benchmarks/trn1/training_data_decoder.csv at commit
1351ee12 (Neuron 2.16, January 2024): NeuronX Distributed, Autocast:BF16+FP32Optimizer.
"""

SEQUENCES_PER_S = {
    "neuron_llama2_7b": 93.3,
    "neuron_llama2_13b": 85.65,
    "neuron_llama2_70b": 15.34,
}
"""By scenario, which has the published topology and batch of 1,024 sequences."""
