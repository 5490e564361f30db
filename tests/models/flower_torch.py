"""A Flower app as its PyTorch quickstart has one: @app.train() and @app.evaluate(), with rows of its own."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


class Net(nn.Module):  # type: ignore[misc]
    """Convolutions over small pictures in three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(4, 8, 3), nn.ReLU())
        self.head = nn.Linear(8 * 5 * 5, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Ten classes."""
        return self.head(self.features(x).flatten(1))


def loaders(context: Context) -> tuple[DataLoader, DataLoader]:
    """Pictures of 32 × 32 pixels of this site alone, one in five to evaluate on."""
    site = int(context.node_config["partition-id"])
    random, rows = np.random.default_rng(site), 40 + 20 * site
    labels = random.integers(0, 10, rows)
    pictures = random.normal(labels[:, None, None, None] / 10, 1.0, (rows, 3, 32, 32)).astype(np.float32)
    rows_of_both = TensorDataset(torch.from_numpy(pictures), torch.from_numpy(labels))
    train, test = torch.utils.data.random_split(rows_of_both, [0.8, 0.2], torch.Generator().manual_seed(0))
    batch_rows = int(context.run_config["batch-size"])
    return DataLoader(train, batch_size=batch_rows, shuffle=True), DataLoader(test, batch_size=batch_rows)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """One pass over the rows."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = loaders(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=msg.content["config"]["lr"], momentum=0.9)
    for _ in range(int(context.run_config["local-epochs"])):
        for pictures, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(pictures), labels).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """The mean loss of the rows that are kept apart."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = loaders(context)
    with torch.no_grad():
        loss = sum(float(nn.functional.cross_entropy(net(x), y, reduction="sum")) for x, y in loader)
    rows = len(loader.dataset)
    metrics = MetricRecord({"eval_loss": loss / rows, "num-examples": rows})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
