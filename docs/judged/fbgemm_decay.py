"""FBGEMM's row-wise Adagrad ignores WeightDecayMode.L2 on the CPU if only one feature uses the table."""

import torch
from fbgemm_gpu import split_table_batched_embeddings_ops_training as ops
from fbgemm_gpu.split_embedding_configs import EmbOptimType

table = [(4, 4, ops.EmbeddingLocation.HOST, ops.ComputeDevice.CPU)]
options = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "weight_decay_mode": ops.WeightDecayMode.L2}
for features, decay in (([0], 0.0), ([0], 0.5), ([0, 0], 0.5)):
    op = ops.SplitTableBatchedEmbeddingBagsCodegen(table, features, learning_rate=0.1, weight_decay=decay, **options)
    op.split_embedding_weights()[0].fill_(1.0)
    found = op(torch.tensor([1]), torch.tensor([0] + [1] * len(features)))
    found[:, :4].backward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    print(len(features), "feature(s), decay", decay, op.split_embedding_weights()[0][1].tolist())
