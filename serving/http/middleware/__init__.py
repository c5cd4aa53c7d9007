"""The layers between the network and the routes: plain ASGI applications, so that streams pass unchanged."""
